package apiserver

import (
	"context"

	"github.com/dsec-io/dsec/internal/aether"
)

// unary asks the edge one question for a caller.
func (s *Server) unary(ctx context.Context, c *call, o aether.Open) ([]byte, error) {
	o.Project, o.RequestID = c.principal.Project, c.id
	return s.ask(ctx, o)
}

func (s *Server) ask(ctx context.Context, o aether.Open) ([]byte, error) {
	st, err := s.edge.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			st.Reset(nil)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			body := append([]byte(nil), f.Data...)
			f.Release()
			_ = st.Close() // the answer is here; how the stream ends doesn't matter
			return body, nil
		}
		f.Release()
	}
}

// open opens a stream to the edge for a caller.
func (s *Server) open(ctx context.Context, c *call, o aether.Open) (*aether.Stream, error) {
	o.Project, o.RequestID = c.principal.Project, c.id
	return s.edge.Open(ctx, o)
}

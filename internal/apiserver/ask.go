package apiserver

import (
	"context"

	"github.com/dsec-io/dsec/internal/aether"
)

// unary asks the edge one question for a caller.
func (s *Server) unary(ctx context.Context, c *call, o aether.Open) ([]byte, error) {
	o.Project, o.RequestID, o.Key = c.principal.Project, c.id, c.key
	return s.ask(ctx, c, o)
}

func (s *Server) ask(ctx context.Context, c *call, o aether.Open) ([]byte, error) {
	st, err := s.edge.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	body, err := c.reply(ctx, st)
	if err != nil {
		st.Reset(nil)
		return nil, err
	}
	_ = st.Close() // the answer is here; how the stream ends doesn't matter
	return body, nil
}

// reply waits for the answer of a unary method.
func (c *call) reply(ctx context.Context, st *aether.Stream) ([]byte, error) {
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
		if f.Channel == aether.Message && f.Type == aether.MsgReply {
			body := append([]byte(nil), f.Data...)
			f.Release()
			return body, nil
		}
		c.isReplay(&f)
		f.Release()
	}
}

// open opens a stream to the edge for a caller.
func (s *Server) open(ctx context.Context, c *call, o aether.Open) (*aether.Stream, error) {
	o.Project, o.RequestID, o.Key = c.principal.Project, c.id, c.key
	return s.edge.Open(ctx, o)
}

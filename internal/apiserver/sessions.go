package apiserver

import (
	"encoding/json"
	"net/http"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// createSession makes a shell session. The body may name an id, a working directory and a user, or be absent.
func (s *Server) createSession(c *call, r *http.Request) error {
	id, err := plainSandbox(r)
	if err != nil {
		return err
	}
	var want api.SessionRequest
	if r.ContentLength != 0 {
		if want, err = decode(c, r, s.decoders.session, smallBody); err != nil {
			return err
		}
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(r, unaryTime)
	defer cancel()
	answer, err := s.unary(ctx, c, aether.Open{Method: "session.create", Sandbox: id, Body: body})
	if err != nil {
		return err
	}
	return c.raw(http.StatusCreated, answer)
}

func (s *Server) closeSession(c *call, r *http.Request) error {
	return s.sessionCommand(c, r, "session.close")
}

// interruptSession ends the command that the session is stuck in.
func (s *Server) interruptSession(c *call, r *http.Request) error {
	return s.sessionCommand(c, r, "session.interrupt")
}

func (s *Server) sessionCommand(c *call, r *http.Request, method string) error {
	if _, err := query(r); err != nil {
		return err
	}
	id, sid, err := inSandbox(r, "sid", api.CodeNoSuchSession)
	if err != nil {
		return err
	}
	return s.command(c, r, aether.Open{Method: method, Sandbox: id, Body: []byte(sid)})
}

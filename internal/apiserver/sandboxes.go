package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

// createTime bounds a create; the edge itself gives up earlier.
const createTime = 2 * time.Minute

// listLimit is how many sandboxes a page may have, and how many it has when the caller doesn't say.
const listLimit = 1000

// listQuery is the body of sandbox.list.
type listQuery struct {
	Project string            `json:"project"`
	Labels  map[string]string `json:"labels,omitempty"`
	State   api.State         `json:"state,omitempty"`
	Limit   int64             `json:"limit,omitempty"`
	Cursor  string            `json:"cursor,omitempty"`
}

func (s *Server) create(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	spec, err := decode(c, r, s.decoders.spec, largeBody)
	if err != nil {
		return err
	}
	body, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(r, createTime)
	defer cancel()
	st, err := s.open(ctx, c, aether.Open{Method: "sandbox.create", Body: body}) //nolint:contextcheck // it is the request's, with a limit
	if err != nil {
		return err
	}
	// The edge takes back a sandbox whose creator has gone, unless a repeat can find it by its key. A reset would overtake
	// the word that it hasn't.
	told := false
	defer func() {
		if !told {
			st.Reset(nil)
		}
	}()
	answer, err := c.reply(ctx, st) //nolint:contextcheck // as above
	if err != nil {
		return err
	}
	if id := createdID(answer); id != "" {
		c.Header().Set("Location", "/v1/sandboxes/"+id)
	}
	if r.Context().Err() != nil {
		return context.Cause(r.Context())
	}
	if err := c.raw(http.StatusCreated, answer); err != nil {
		return err
	}
	if http.NewResponseController(c.ResponseWriter).Flush() == nil {
		told = st.Close() == nil
	}
	if told { // the server may be ending, and with it the connection that the word goes by
		select {
		case <-st.Done():
		case <-ctx.Done():
		}
	}
	return nil
}

// createdID finds the id in the edge's answer.
func createdID(answer []byte) string {
	var sb struct {
		ID string `json:"id"`
	}
	_ = json.Unmarshal(answer, &sb) // then there is no Location
	return sb.ID
}

func (s *Server) list(c *call, r *http.Request) error {
	q, err := query(r, "label", "state", "limit", "cursor")
	if err != nil {
		return err
	}
	want := listQuery{Project: c.principal.Project, State: api.State(q.text("state")), Cursor: q.text("cursor")}
	if want.Limit, err = q.number("limit", 0, 1, listLimit); err != nil {
		return err
	}
	if want.State != "" && !slices.Contains(api.States(), want.State) {
		return api.FieldError(api.CodeInvalid, "state", "use running, paused, stopped, …", "%q isn't a state of a sandbox", clip(string(want.State)))
	}
	for _, label := range q.values["label"] {
		k, v, ok := strings.Cut(label, "=")
		if !ok || k == "" {
			return api.FieldError(api.CodeInvalid, "label", "write label=KEY=VALUE", "%q has no key and value", clip(label))
		}
		if old, twice := want.Labels[k]; twice && old != v {
			return api.FieldError(api.CodeInvalid, "label", "", "%q can't have two values", clip(k))
		}
		if want.Labels == nil {
			want.Labels = map[string]string{}
		}
		want.Labels[k] = v
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	return s.read(c, r, aether.Open{Method: "sandbox.list", Body: body})
}

func (s *Server) get(c *call, r *http.Request) error { return s.readSandbox(c, r, "sandbox.get") }

func (s *Server) usage(c *call, r *http.Request) error { return s.readSandbox(c, r, "sandbox.metrics") }

func (s *Server) listProcesses(c *call, r *http.Request) error {
	return s.readSandbox(c, r, "processes")
}

func (s *Server) listSessions(c *call, r *http.Request) error {
	return s.readSandbox(c, r, "session.list")
}

func (s *Server) readSandbox(c *call, r *http.Request, method string) error {
	id, err := plainSandbox(r)
	if err != nil {
		return err
	}
	return s.read(c, r, aether.Open{Method: method, Sandbox: id})
}

// plainSandbox is the sandbox of a request that takes no parameters.
func plainSandbox(r *http.Request) (string, error) {
	if _, err := query(r); err != nil {
		return "", err
	}
	return sandboxID(r)
}

// read asks the edge for JSON and passes it on.
func (s *Server) read(c *call, r *http.Request, o aether.Open) error {
	ctx, cancel := bounded(r, unaryTime)
	defer cancel()
	answer, err := s.unary(ctx, c, o)
	if err != nil {
		return repeatable(err)
	}
	return c.raw(http.StatusOK, answer)
}

// changer makes the handler of a change that is asked for by a body of some type.
func changer[T any](s *Server, method string, mayBeEmpty bool) handler {
	d := api.NewDecoder[T]()
	return func(c *call, r *http.Request) error {
		id, err := plainSandbox(r)
		if err != nil {
			return err
		}
		o := aether.Open{Method: method, Sandbox: id}
		if r.ContentLength != 0 || !mayBeEmpty {
			want, err := decode(c, r, d, smallBody)
			if err != nil {
				return err
			}
			if o.Body, err = json.Marshal(want); err != nil {
				return err
			}
		}
		return s.change(c, r, o)
	}
}

func (s *Server) stopSandbox(c *call, r *http.Request) error {
	id, err := plainSandbox(r)
	if err != nil {
		return err
	}
	return s.change(c, r, aether.Open{Method: "sandbox.stop", Sandbox: id})
}

// change has the edge do something and passes its JSON on.
func (s *Server) change(c *call, r *http.Request, o aether.Open) error {
	ctx, cancel := bounded(r, unaryTime)
	defer cancel()
	answer, err := s.unary(ctx, c, o)
	if err != nil {
		return err
	}
	return c.raw(http.StatusOK, answer)
}

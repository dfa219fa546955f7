package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/imageface"
)

const mediaTar = "application/x-tar"

// imageQuery is the body of the methods about images that there are.
type imageQuery struct {
	Name  string `json:"name,omitempty"`
	Force bool   `json:"force,omitempty"`
	All   bool   `json:"all,omitempty"`
}

// askImages asks the edge about images and passes its JSON on.
func (s *Server) askImages(c *call, r *http.Request, method string, q imageQuery) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if r.Method == http.MethodGet {
		return s.read(c, r, aether.Open{Method: method, Body: body})
	}
	return s.change(c, r, aether.Open{Method: method, Body: body})
}

func (s *Server) listImages(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	return s.askImages(c, r, "image.list", imageQuery{})
}

func (s *Server) getImage(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	return s.askImages(c, r, "image.list", imageQuery{Name: r.PathValue("name")})
}

func (s *Server) removeImage(c *call, r *http.Request) error {
	q, err := query(r, "force")
	if err != nil {
		return err
	}
	force, err := q.flag("force")
	if err != nil {
		return err
	}
	return s.askImages(c, r, "image.remove", imageQuery{Name: r.PathValue("name"), Force: force})
}

func (s *Server) collectImages(c *call, r *http.Request) error {
	q, err := query(r, "all")
	if err != nil {
		return err
	}
	all, err := q.flag("all")
	if err != nil {
		return err
	}
	return s.askImages(c, r, "image.gc", imageQuery{All: all})
}

// exportImage answers with an image's tree as a tar. One that breaks off breaks the connection.
func (s *Server) exportImage(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	body, err := json.Marshal(imageQuery{Name: r.PathValue("name")})
	if err != nil {
		return err
	}
	ctx := r.Context()
	st, err := s.open(ctx, c, aether.Open{Method: "image.export", Body: body, Closed: true})
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	f, err := first(ctx, st)
	if err != nil {
		return err
	}
	out := newLiveAnswer(c, mediaTar)
	for {
		err := out.write(f.Data)
		end := f.End
		f.Release()
		if err != nil || end {
			return err
		}
		if f, err = st.Recv(ctx); err != nil {
			return err
		}
	}
}

func (s *Server) importImage(c *call, r *http.Request) error {
	want, err := importQuery(r)
	if err != nil {
		return err
	}
	return s.imageCall(c, r).Import(want)
}

func (s *Server) pullImage(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	want, err := decode(c, r, s.decoders.pull, smallBody)
	if err != nil {
		return err
	}
	return s.imageCall(c, r).Pull(want)
}

func (s *Server) pushImage(c *call, r *http.Request) error {
	if _, err := query(r); err != nil {
		return err
	}
	want, err := decode(c, r, s.decoders.push, smallBody)
	if err != nil {
		return err
	}
	return s.imageCall(c, r).Push(r.PathValue("name"), want)
}

// imageCall is a request about an image that takes its time.
func (s *Server) imageCall(c *call, r *http.Request) imageface.Call {
	out := imageface.Call{
		W: c, R: r, Answer: c.raw, After: func(f func()) { c.after = f },
		Open: func(method string, v any) (*aether.Stream, error) {
			body, err := json.Marshal(v)
			if err != nil {
				return nil, err
			}
			return s.open(r.Context(), c, aether.Open{Method: method, Body: body})
		},
		Problem: func(err error) *api.Error {
			own := *asProblem(err)
			own.RequestID = c.id
			return own.Complete()
		},
	}
	if accepts(r, mediaNDJSON) {
		out.Lines = func() func([]byte) error { return newLiveAnswer(c, mediaNDJSON).write }
	}
	return out
}

func importQuery(r *http.Request) (api.ImageImport, error) {
	q, err := query(r, "name", "format", "replace", "squash")
	if err != nil {
		return api.ImageImport{}, err
	}
	want := api.ImageImport{Name: q.text("name"), Format: q.text("format")}
	if want.Name == "" {
		return want, api.FieldError(api.CodeInvalid, "name", "write ?name=NAME", "the image has no name")
	}
	var errs [2]error
	want.Replace, errs[0] = q.flag("replace")
	want.Squash, errs[1] = q.flag("squash")
	return want, errors.Join(errs[:]...)
}

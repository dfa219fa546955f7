package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

const (
	mediaTar = "application/x-tar"
	maxLine  = 1 << 20 // bounds one line of the edge's progress
)

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

// importImage makes an image of the body, which is passed on as it comes.
func (s *Server) importImage(c *call, r *http.Request) error {
	want, err := importQuery(r)
	if err != nil {
		return err
	}
	body, err := json.Marshal(want)
	if err != nil {
		return err
	}
	ctx := r.Context()
	st, err := s.open(ctx, c, aether.Open{Method: "image.import", Body: body})
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	up := edgelink.StartUpload(ctx, http.NewResponseController(c.ResponseWriter), r.Body, st)
	c.after = up.Linger
	var out *liveAnswer
	if accepts(r, mediaNDJSON) {
		out = newLiveAnswer(c, mediaNDJSON)
	}
	var rest []byte
	answer, err := up.Result(ctx, func(b []byte) error {
		if out == nil {
			return nil
		}
		var err error
		rest, err = passLines(out, append(rest, b...))
		return err
	})
	switch {
	case err == nil && out == nil:
		c.Header().Set("Location", "/v1/images/"+url.PathEscape(want.Name)) // the edge has checked it; a header may not break anyhow
		return c.raw(http.StatusCreated, answer)
	case out == nil:
		return err
	case err != nil:
		own := *asProblem(err)
		own.RequestID = c.id
		return writeEvent(out, api.ImageEvent{Type: "error", Error: own.Complete()})
	}
	var made api.Image
	if err := json.Unmarshal(answer, &made); err != nil {
		return err
	}
	return writeEvent(out, api.ImageEvent{Type: "done", Image: &made})
}

func writeEvent(out *liveAnswer, ev api.ImageEvent) error {
	line, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	return out.write(append(line, '\n'))
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

// passLines writes the whole lines of b and returns the rest of it.
func passLines(out *liveAnswer, b []byte) ([]byte, error) {
	end := bytes.LastIndexByte(b, '\n') + 1
	if len(b)-end > maxLine {
		return nil, api.Errorf(api.CodeUnavailable, "the edge sent a line without end")
	}
	if end == 0 {
		return b, nil
	}
	err := out.write(b[:end])
	return append(b[:0], b[end:]...), err
}

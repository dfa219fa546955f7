package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
)

const (
	uploadChunk = 128 << 10
	mediaTar    = "application/x-tar"
	maxLine     = 1 << 20 // bounds one line of the edge's progress
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
	if err := refuseKey(r); err != nil {
		return err
	}
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
	if err := refuseKey(r); err != nil {
		return err
	}
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
	up := startUpload(ctx, c, r.Body, st)
	defer up.close()
	var out *liveAnswer
	if accepts(r, mediaNDJSON) {
		out = newLiveAnswer(c, mediaNDJSON)
	}
	answer, err := up.result(ctx, out)
	switch {
	case err == nil && out == nil:
		c.Header().Set("Location", "/v1/images/"+want.Name)
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

// upload passes a body on to a stream. It has a goroutine of its own, because the edge may have something to say before
// the end of the body, which then never comes.
type upload struct {
	st   *aether.Stream
	body io.Reader
	rc   *http.ResponseController
	quit atomic.Bool // no more is wanted
	wg   sync.WaitGroup
	err  error // why the body wasn't passed on to its end; read after wg
	over atomic.Bool
}

func startUpload(ctx context.Context, c *call, body io.Reader, st *aether.Stream) *upload {
	up := &upload{st: st, body: body, rc: http.NewResponseController(c.ResponseWriter)}
	_ = up.rc.EnableFullDuplex() // not supported: then there is no connection to share
	up.wg.Go(func() {
		up.err = up.run(ctx)
		up.over.Store(up.err == nil)
		if up.err != nil {
			st.Reset(api.Errorf(api.CodeInvalid, "the upload broke off"))
		}
	})
	return up
}

func (up *upload) run(ctx context.Context) error {
	buf := make([]byte, uploadChunk)
	for {
		_ = up.rc.SetReadDeadline(time.Now().Add(stallTime)) // not supported: no limit
		if up.quit.Load() {
			return errors.New("nothing more is wanted")
		}
		n, err := up.body.Read(buf)
		if n > 0 {
			if werr := up.st.Write(ctx, aether.Stdin, buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			_ = up.rc.SetReadDeadline(time.Time{}) // as above
			return up.st.CloseWrite(aether.Stdin)
		}
		if err != nil {
			return &uploadError{err}
		}
	}
}

// uploadError is a failure to read the body.
type uploadError struct{ err error }

func (e *uploadError) Error() string { return "read the upload: " + e.err.Error() }

// Unwrap is what the client is told, if it is still there.
func (e *uploadError) Unwrap() []error {
	return []error{e.err, api.Errorf(api.CodeInvalid, "the upload broke off: %v", e.err)}
}

// result waits for the edge's answer and passes progress on to out, if there is one.
func (up *upload) result(ctx context.Context, out *liveAnswer) ([]byte, error) {
	var rest []byte
	for {
		f, err := up.st.Recv(ctx)
		if err != nil {
			up.close()
			if broken, ok := errors.AsType[*uploadError](up.err); ok && !up.over.Load() {
				if _, told := errors.AsType[*api.Error](err); !told {
					return nil, broken
				}
			}
			return nil, err
		}
		answer := f.Channel == aether.Message && f.Type == aether.MsgReply
		if answer {
			rest = append(rest[:0], f.Data...)
		} else if f.Channel == aether.Stdout && out != nil {
			rest, err = passLines(out, append(rest, f.Data...))
		}
		f.Release()
		if answer || err != nil {
			return rest, err
		}
	}
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

// close ends the upload wherever it is, and waits for that.
func (up *upload) close() {
	up.quit.Store(true)
	if !up.over.Load() {
		_ = up.rc.SetReadDeadline(time.Unix(1, 0)) // not supported: the body ends with the request
	}
	up.st.Reset(nil)
	up.wg.Wait()
}

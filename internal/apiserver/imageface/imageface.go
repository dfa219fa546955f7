// Package imageface answers requests that make images, or send them away, which takes its time: as lines of JSON that tell
// how far it is, or as one answer at the end.
//
// It holds nothing between requests, and is safe for concurrent use.
package imageface

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/apiserver/edgelink"
)

const maxLine = 1 << 20 // bounds one line of the edge's progress

// Call is a request on its way, as the server has it.
type Call struct {
	W       http.ResponseWriter
	R       *http.Request
	Open    func(method string, body any) (*aether.Stream, error) // opens a stream to the edge, in the caller's name
	Lines   func() func([]byte) error                             // begins an answer of lines; nil where one answer was asked for
	Answer  func(status int, body []byte) error                   // sends one answer
	Problem func(error) *api.Error                                // is an error as the caller is told it
	After   func(func())                                          // sees to what is left to do once the answer was sent
}

// Import makes an image of the body, which is passed on as it comes.
func (c Call) Import(want api.ImageImport) error {
	st, err := c.Open("image.import", want)
	if err != nil {
		return err
	}
	defer st.Reset(nil)
	up := edgelink.StartUpload(c.R.Context(), http.NewResponseController(c.W), c.R.Body, st)
	c.After(up.Linger)
	return c.follow(up.Result, func(reply []byte) (api.ImageEvent, error) {
		var made api.Image
		err := json.Unmarshal(reply, &made)
		return api.ImageEvent{Type: "done", Image: &made}, err
	})
}

// Pull fetches an image from a registry.
func (c Call) Pull(want api.ImagePull) error { return c.ask("image.pull", want) }

// Push sends an image to a registry.
func (c Call) Push(name string, want api.ImagePush) error {
	return c.ask("image.push", struct {
		Name string        `json:"name"`
		Push api.ImagePush `json:"push"`
	}{name, want})
}

// ask asks the edge for what is answered with an event.
func (c Call) ask(method string, body any) error {
	st, err := c.Open(method, body)
	if err != nil {
		return err
	}
	defer st.Reset(nil) // who no longer waits ends it
	return c.follow(func(ctx context.Context, output func([]byte) error) ([]byte, error) { return result(ctx, st, output) },
		func(reply []byte) (ev api.ImageEvent, err error) {
			err = json.Unmarshal(reply, &ev)
			return ev, err
		})
}

// result waits for the edge's answer; output is given what comes before.
func result(ctx context.Context, st *aether.Stream, output func([]byte) error) ([]byte, error) {
	for {
		f, err := st.Recv(ctx)
		if err != nil {
			return nil, err
		}
		var answer []byte
		switch {
		case f.Channel == aether.Message && f.Type == aether.MsgReply:
			answer = append([]byte{}, f.Data...)
		case f.Channel == aether.Stdout:
			err = output(f.Data)
		}
		f.Release()
		if answer != nil || err != nil {
			return answer, err
		}
	}
}

// follow passes on progress, where it's wanted, and what came of it in the end.
func (c Call) follow(wait func(context.Context, func([]byte) error) ([]byte, error), done func([]byte) (api.ImageEvent, error)) error {
	var out func([]byte) error
	if c.Lines != nil {
		out = c.Lines()
	}
	var rest []byte
	reply, err := wait(c.R.Context(), func(b []byte) error {
		if out == nil {
			return nil
		}
		var err error
		rest, err = passLines(out, append(rest, b...))
		return err
	})
	var ev api.ImageEvent
	if err == nil {
		ev, err = done(reply)
	}
	if out == nil {
		if err != nil {
			return err
		}
		return c.one(ev)
	}
	if err != nil {
		ev = api.ImageEvent{Type: "error", Error: c.Problem(err)}
	}
	line, err := json.Marshal(ev)
	if err != nil {
		return err
	}
	return out(append(line, '\n'))
}

// one sends one answer: what was made, or what there was already.
func (c Call) one(ev api.ImageEvent) error {
	var what any = ev.Image
	status := http.StatusOK
	switch {
	case ev.Image == nil:
		what = ev.Pushed
	case !ev.UpToDate:
		status = http.StatusCreated
		c.W.Header().Set("Location", "/v1/images/"+url.PathEscape(ev.Image.Name))
	}
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	return c.Answer(status, body)
}

// passLines writes the whole lines of b and returns the rest of it.
func passLines(out func([]byte) error, b []byte) ([]byte, error) {
	end := bytes.LastIndexByte(b, '\n') + 1
	if len(b)-end > maxLine {
		return nil, api.Errorf(api.CodeUnavailable, "the edge sent a line without end")
	}
	if end == 0 {
		return b, nil
	}
	err := out(b[:end])
	return append(b[:0], b[end:]...), err
}

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/dsec-io/dsec/api"
)

// client speaks plain REST over connections that it keeps, as any client in any language would.
type client struct {
	http  *http.Client
	base  string
	token string
	image string
}

func newClient(endpoint, token string) *client {
	t := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true, Protocols: new(http.Protocols)}
	t.Protocols.SetHTTP1(true)
	return &client{http: &http.Client{Transport: t}, base: endpoint, token: token}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// call makes one request and decodes the answer into out.
func (c *client) call(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return refusedWith(method, path, resp.Status, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// refusal is an answer that isn't a success.
type refusal struct {
	Code   api.Code `json:"code"`
	Detail string   `json:"detail"`
	text   string
}

func (r *refusal) Error() string { return r.text }

// refusedWith makes an error of an answer. What isn't a problem document has no code.
func refusedWith(method, path, status string, raw []byte) error {
	r := &refusal{text: fmt.Sprintf("%s %s: %s: %s", method, path, status, bytes.TrimSpace(raw))}
	_ = json.Unmarshal(raw, r) // the text has all of it
	return r
}

// createBody is the same limits as the peers get.
func (c *client) createBody() ([]byte, error) {
	cpu, pids := float64(limitCPU), int64(limitPIDs)
	return json.Marshal(api.Spec{Image: c.image, Resources: api.Resources{CPU: &cpu, MemoryMB: new(int64(limitMemoryMB)), PIDs: &pids}})
}

func (c *client) create(ctx context.Context, body []byte) (string, error) {
	var sb struct {
		ID string `json:"id"`
	}
	err := c.call(ctx, http.MethodPost, "/v1/sandboxes", body, &sb)
	if err == nil && sb.ID == "" {
		err = errors.New("create: no id in the answer")
	}
	return sb.ID, err
}

func (c *client) stop(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/v1/sandboxes/"+id, nil, &struct{}{})
}

// exec runs a command that has to exit with 0.
func (c *client) exec(ctx context.Context, id string, body []byte) error {
	var r struct {
		ExitCode *int   `json:"exit_code"`
		Infra    string `json:"infra_error"`
		Stderr   string `json:"stderr"`
	}
	if err := c.call(ctx, http.MethodPost, "/v1/sandboxes/"+id+"/exec", body, &r); err != nil {
		return err
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		return fmt.Errorf("the command didn't exit with 0: %+v", r)
	}
	return nil
}

// life is create, first exec, stop. A sandbox whose exec failed is stopped all the same.
func (c *client) life(ctx context.Context, l *laps, spec, command []byte) error {
	id, err := c.create(ctx, spec)
	if err != nil {
		return err
	}
	l.lap(stepCreate)
	err = c.exec(ctx, id, command)
	l.lap(stepExec)
	err = errors.Join(err, c.stop(context.WithoutCancel(ctx), id))
	l.lap(stepStop)
	l.sum()
	return err
}

// The steps of a life; the peers' are the same.
const (
	stepCreate = "create"
	stepExec   = "exec"
	stepStop   = "stop"
	stepFirst  = "create-to-first-exec"
	stepLife   = "life"
)

// sum adds what users wait for: until the first answer, and in all.
func (l *laps) sum() {
	if len(l.times) == 3 {
		first := l.times[0] + l.times[1]
		l.add(stepFirst, first)
		l.add(stepLife, first+l.times[2])
	}
}

// The limits of every sandbox and container that is measured.
const (
	limitCPU      = 1
	limitMemoryMB = 128
	limitPIDs     = 512
)

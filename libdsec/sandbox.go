package libdsec

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Sandbox is a handle on a sandbox. It holds no connection of its own and needs no closing; the sandbox lives until
// [Sandbox.Stop] or its TTL, whoever holds handles.
type Sandbox struct {
	client *Client
	id     string

	mu   sync.Mutex // guards info
	info api.Sandbox
}

// Create makes a sandbox and returns when it answers commands. It is sent under an idempotency key, so that a lost answer
// can be asked for again: there is one sandbox, however often it was sent. What is made for a create whose ctx ends is
// taken back by the server some seconds later.
func (c *Client) Create(ctx context.Context, spec api.Spec) (*Sandbox, error) {
	return c.CreateOnce(ctx, NewKey(), spec)
}

// CreateOnce is Create under an idempotency key of the caller's own, who may thus ask for the same sandbox again in another
// life.
func (c *Client) CreateOnce(ctx context.Context, key string, spec api.Spec) (*Sandbox, error) {
	var info api.Sandbox
	if err := c.keyed(ctx, "/v1/sandboxes", key, spec, &info); err != nil {
		return nil, err
	}
	return c.handle(info), nil
}

// Get finds a sandbox by id.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	sb := c.Sandbox(id)
	if _, err := sb.Refresh(ctx); err != nil {
		return nil, err
	}
	return sb, nil
}

// Sandbox is a handle on a sandbox whose id is known, without asking whether it's there.
func (c *Client) Sandbox(id string) *Sandbox {
	return &Sandbox{client: c, id: id, info: api.Sandbox{ID: id}}
}

func (c *Client) handle(info api.Sandbox) *Sandbox {
	return &Sandbox{client: c, id: info.ID, info: info}
}

// ListOptions choose sandboxes. The zero value chooses all.
type ListOptions struct {
	State  api.State         // empty: any
	Labels map[string]string // a sandbox must have all of them
	Page   int               // how many are asked for at a time; 0: the server's default
}

// List yields sandboxes, newest first, asking for further pages as they are needed. After an error it yields no more.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	return func(yield func(*Sandbox, error) bool) {
		q := url.Values{}
		if o.State != "" {
			q.Set("state", string(o.State))
		}
		for k, v := range o.Labels {
			q.Add("label", k+"="+v)
		}
		if o.Page > 0 {
			q.Set("limit", strconv.Itoa(o.Page))
		}
		for {
			var page api.SandboxList
			if err := c.call(ctx, http.MethodGet, "/v1/sandboxes?"+q.Encode(), nil, &page); err != nil {
				yield(nil, err)
				return
			}
			for _, info := range page.Items {
				if !yield(c.handle(info), nil) {
					return
				}
			}
			if page.Cursor == "" {
				return
			}
			q.Set("cursor", page.Cursor)
		}
	}
}

// ID is the sandbox's id.
func (s *Sandbox) ID() string { return s.id }

// Info is what was last heard of the sandbox; [Sandbox.Refresh] asks again.
func (s *Sandbox) Info() api.Sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info
}

// Refresh asks for the sandbox's state and spec. Asking never wakes a paused sandbox.
func (s *Sandbox) Refresh(ctx context.Context) (api.Sandbox, error) {
	return s.update(ctx, http.MethodGet, nil)
}

// Patch changes env, labels or limits and returns the sandbox as it is then.
func (s *Sandbox) Patch(ctx context.Context, p api.Patch) (api.Sandbox, error) {
	return s.update(ctx, http.MethodPatch, p)
}

// Stop ends the sandbox with everything in it. Stopping a sandbox that has ended is no error: then Already is set.
func (s *Sandbox) Stop(ctx context.Context) (api.Sandbox, error) {
	return s.update(ctx, http.MethodDelete, nil)
}

// Extend makes the sandbox's running time (ttl.running_s) last for at least d from now on. It never makes it shorter, and
// it can't outlast ttl.max_s. ExpiresAt of the answer is the new end.
func (s *Sandbox) Extend(ctx context.Context, d time.Duration) (api.Sandbox, error) {
	return s.ask(ctx, "/extend", NewKey(), api.Extension{RunningS: seconds(d)})
}

// Pause makes everything in the sandbox stand still until [Sandbox.Resume], or until something is to be done in it: any
// command, session, file or port that is asked for wakes it. Memory, processes, files and open streams stay as they are.
// Pausing a paused sandbox is no error: then Already is set. One that can't be paused runs on ([api.CodePauseFailed]).
func (s *Sandbox) Pause(ctx context.Context) (api.Sandbox, error) {
	return s.ask(ctx, "/pause", "", nil)
}

// Resume lets a paused sandbox go on where it was. Resuming one that runs is no error: then Already is set.
func (s *Sandbox) Resume(ctx context.Context) (api.Sandbox, error) {
	return s.ask(ctx, "/resume", "", nil)
}

// ResumeFor is Resume and [Sandbox.Extend] in one.
func (s *Sandbox) ResumeFor(ctx context.Context, d time.Duration) (api.Sandbox, error) {
	return s.ask(ctx, "/resume", "", api.Resumption{RunningS: seconds(d)})
}

// seconds rounds up.
func seconds(d time.Duration) *int64 { return new(int64((d + time.Second - 1) / time.Second)) }

func (s *Sandbox) ask(ctx context.Context, what, key string, body any) (api.Sandbox, error) {
	var info api.Sandbox
	if err := s.client.keyed(ctx, s.path(what), key, body, &info); err != nil {
		return api.Sandbox{}, err
	}
	s.mu.Lock()
	s.info = info
	s.mu.Unlock()
	return info, nil
}

func (s *Sandbox) update(ctx context.Context, method string, body any) (api.Sandbox, error) {
	var info api.Sandbox
	if err := s.client.call(ctx, method, s.path(""), body, &info); err != nil {
		return api.Sandbox{}, err
	}
	s.mu.Lock()
	s.info = info
	s.mu.Unlock()
	return info, nil
}

// Metrics are the sandbox's resource figures now, by name.
func (s *Sandbox) Metrics(ctx context.Context) (map[string]any, error) {
	var m map[string]any
	err := s.client.call(ctx, http.MethodGet, s.path("/metrics"), nil, &m)
	return m, err
}

// Processes lists the started processes that are still known, running or not.
func (s *Sandbox) Processes(ctx context.Context) ([]api.Process, error) {
	var ps []api.Process
	err := s.client.call(ctx, http.MethodGet, s.path("/processes"), nil, &ps)
	return ps, err
}

// Sessions lists the shell sessions.
func (s *Sandbox) Sessions(ctx context.Context) ([]api.Session, error) {
	var ss []api.Session
	err := s.client.call(ctx, http.MethodGet, s.path("/sessions"), nil, &ss)
	return ss, err
}

// NewSession makes a shell session: commands run in it (see [Cmd]) find the working directory and environment that
// earlier ones left. Want may name an id, a working directory and a user.
func (s *Sandbox) NewSession(ctx context.Context, want api.Session) (api.Session, error) {
	var got api.Session
	body := api.SessionRequest{ID: want.ID, Cwd: want.Cwd, User: want.User}
	err := s.client.call(ctx, http.MethodPost, s.path("/sessions"), body, &got)
	return got, err
}

// CloseSession ends a session and what runs in it.
func (s *Sandbox) CloseSession(ctx context.Context, session string) error {
	return s.client.call(ctx, http.MethodDelete, s.path("/sessions/"+url.PathEscape(session)), nil, nil)
}

// InterruptSession ends the command that a session is stuck in; the session keeps its directory and environment.
func (s *Sandbox) InterruptSession(ctx context.Context, session string) error {
	return s.client.call(ctx, http.MethodPost, s.path("/sessions/"+url.PathEscape(session)+"/interrupt"), nil, nil)
}

func (s *Sandbox) path(rest string) string {
	return "/v1/sandboxes/" + url.PathEscape(s.id) + rest
}

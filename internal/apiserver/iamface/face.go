package iamface

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/iam"
	"github.com/dsec-io/dsec/internal/iam/audit"
)

// Config is what a [Face] is made of. All but the logger are required.
type Config struct {
	Authority *iam.Authority
	Audit     *audit.Log
	Ask       func(context.Context, aether.Open) ([]byte, error) // asks the edge
	Logger    *slog.Logger
}

// Face admits requests, records them, and serves the routes of projects, tokens and the audit log.
type Face struct {
	cfg      Config
	needs    map[string]Need // of routes
	methods  map[string]Need
	decoders decoders
	reads    chan struct{} // holds a token per reader of the audit log that there may be
	strange  throttle
}

type decoders struct {
	project *api.Decoder[api.ProjectSpec]
	token   *api.Decoder[api.TokenSpec]
}

// readers is how many may read the audit log at a time: each has a file of it in memory.
const readers = 2

// New makes a Face.
func New(cfg Config) *Face {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Face{
		cfg: cfg, needs: map[string]Need{}, methods: map[string]Need{}, reads: make(chan struct{}, readers),
		decoders: decoders{project: api.NewDecoder[api.ProjectSpec](), token: api.NewDecoder[api.TokenSpec]()},
	}
	for pattern, scope := range routeScopes() {
		f.needs[pattern] = needOf(pattern, scope)
	}
	for method, scope := range methodScopes() {
		f.methods[method] = needOf(method, scope)
	}
	return f
}

// Need is what a route demands. ok is false for one that no table names, which nobody may use.
func (f *Face) Need(pattern string) (n Need, ok bool) {
	n, ok = f.needs[pattern]
	n.Operation = pattern
	return n, ok
}

// Method is what a method of the aether protocol demands; ok as for Need.
func (f *Face) Method(name string) (n Need, ok bool) {
	n, ok = f.methods[name]
	n.Operation = name
	return n, ok
}

// Admit finds out who sent a request, and in which project it acts. The error is an [*api.Error]; with a forbidden one
// the principal is known.
func (f *Face) Admit(r *http.Request) (iam.Admission, error) {
	secret, err := bearer(r.Header.Get("Authorization"))
	if err != nil {
		return iam.Admission{}, err
	}
	project := ""
	if given := r.Header[api.HeaderProject]; len(given) > 0 {
		project = given[0]
		if len(given) > 1 {
			return iam.Admission{}, api.FieldError(api.CodeInvalid, api.HeaderProject, "", "it is given %d times", len(given))
		}
		if err := api.CheckProjectName(api.HeaderProject, project); err != nil {
			return iam.Admission{}, err
		}
	}
	return f.cfg.Authority.Admit(r.Context(), secret, project)
}

func bearer(given string) (string, error) {
	scheme, token, _ := strings.Cut(given, " ")
	token = strings.TrimSpace(token)
	switch {
	case given == "":
		return "", api.FieldError(api.CodeUnauthenticated, "Authorization", "send Authorization: Bearer TOKEN; the token is in the context file", "there is no token")
	case !strings.EqualFold(scheme, "Bearer") || token == "":
		return "", api.FieldError(api.CodeUnauthenticated, "Authorization", "send Authorization: Bearer TOKEN", "it isn't a bearer token")
	}
	return token, nil
}

// Ended is a request that was answered, or a stream that has ended.
type Ended struct {
	Need      Need
	Principal iam.Principal
	RequestID string
	Client    string        // address and port
	Resource  func() string // asked only if it's worth a record
	Code      string        // of the error; "": none
}

// Record writes into the audit log what is worth it: what changes something, every refusal, and looks at sandboxes that
// aren't the project's.
func (f *Face) Record(e Ended) {
	refused := e.Code == string(api.CodeUnauthenticated) || e.Code == string(api.CodeForbidden)
	if !e.Need.changes && !refused && e.Code != string(api.CodeNotFound) {
		return
	}
	resource := e.Resource()
	if !e.Need.changes && !refused && !strings.HasPrefix(resource, "sandbox/") {
		return // a path that there isn't is nobody's
	}
	rec, kind := e.record(resource), e.Need.kind
	if refused {
		rec.Decision, kind = api.Deny, audit.Refusal
	}
	if refused && rec.Token == "" { // strangers can send as many as they like
		var ok bool
		if rec.Suppressed, ok = f.strange.take(time.Now()); !ok {
			return
		}
	}
	f.cfg.Audit.Add(kind, rec)
	if kind != audit.Control {
		return
	}
	if err := f.cfg.Audit.Flush(); err != nil {
		f.cfg.Logger.Error("the audit log can't be written", slog.Any("err", err))
	}
}

// record is what is written of an allowed request.
func (e *Ended) record(resource string) api.AuditRecord {
	rec := api.AuditRecord{
		RequestID: e.RequestID, Token: e.Principal.Token, Project: e.Principal.Project, Action: string(e.Need.scope), Operation: e.Need.Operation,
		Resource: resource, Decision: api.Allow, Result: e.Code,
	}
	if rec.Result == "" {
		rec.Result = "ok"
	}
	if e.Need.scope == anybody {
		rec.Action = ""
	}
	if host, _, err := net.SplitHostPort(e.Client); err == nil {
		rec.Client = host
	}
	return rec
}

// throttle lets a few through each second, and counts the rest.
type throttle struct {
	mu     sync.Mutex // guards the rest
	second int64
	taken  int
	missed int64
}

// strangers is how many refusals of strangers are kept a second.
const strangers = 20

func (t *throttle) take(now time.Time) (missed int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := now.Unix(); s != t.second {
		t.second, t.taken = s, 0
	}
	if t.taken >= strangers {
		t.missed++
		return 0, false
	}
	t.taken++
	missed, t.missed = t.missed, 0
	return missed, true
}

// Resource names what a request was about, by its path and, for what it made, by its answer's Location.
func Resource(r *http.Request, answer http.Header) string {
	const maxName = 128
	for _, kind := range []struct{ path, value, name string }{
		{"/v1/sandboxes", "id", "sandbox/"}, {"/v1/images", "name", "image/"}, {"/v1/projects", "project", "project/"}, {"/v1/tokens", "id", "token/"},
	} {
		rest, ok := strings.CutPrefix(r.URL.Path, kind.path)
		if !ok || rest != "" && rest[0] != '/' {
			continue
		}
		id := r.PathValue(kind.value)
		if id == "" {
			id = strings.TrimPrefix(answer.Get("Location"), kind.path+"/")
		}
		if id == "" && kind.value == "name" {
			id = r.URL.Query().Get("name")
		}
		if kind.name == "token/" {
			id = iam.IDOf(id) // somebody may send a whole secret
		}
		if id == "" {
			return ""
		}
		id = iam.Redact(id)
		return kind.name + strings.ToValidUTF8(id[:min(len(id), maxName)], "?")
	}
	return ""
}

// Sandbox names a sandbox as a resource; what can't be an id names nothing.
func Sandbox(id string) string {
	if !isSandboxID(id) {
		return ""
	}
	return "sandbox/" + id
}

const (
	maxBody  = 64 << 10
	bodyTime = 30 * time.Second
)

// body reads a small JSON body.
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if media := r.Header.Get("Content-Type"); media != "" {
		media, _, _ = strings.Cut(media, ";")
		if media = strings.TrimSpace(media); media != "application/json" && !strings.HasSuffix(media, "+json") {
			return nil, api.FieldError(api.CodeUnsupportedMedia, "Content-Type", "send Content-Type: application/json; with curl, --json in place of -d", "the body isn't JSON")
		}
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // not supported: no limit
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return nil, api.FieldError(api.CodeTooLarge, "body", "", "the body is over the limit of %d bytes", maxBody)
	}
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "the body couldn't be read: %v", err)
	}
	return data, nil
}

// answer sends a value.
func answer(w http.ResponseWriter, status int, v any) error {
	out, err := json.Marshal(v)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store") // a token's secret is in one of them
	w.WriteHeader(status)
	_, _ = w.Write(append(out, '\n')) // the client has gone: nobody to tell
	return nil
}

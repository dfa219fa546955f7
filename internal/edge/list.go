package edge

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/spec"
)

// How many sandboxes a page of a listing has.
const (
	defaultPage = 100
	maxPage     = 1000
)

// listQuery is the body of method "sandbox.list".
type listQuery struct {
	Project string            `json:"project,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	State   api.State         `json:"state,omitempty"`
	Limit   *int              `json:"limit,omitempty"`
	Cursor  string            `json:"cursor,omitempty"`
}

// list is one page of a project's sandboxes, newest first. A cursor names the last one shown, so what is created or ends
// meanwhile neither repeats nor hides another.
func (e *Edge) list(project string, q listQuery) (api.SandboxList, error) {
	page := defaultPage
	if q.Limit != nil {
		page = *q.Limit
	}
	if page < 1 || page > maxPage {
		return api.SandboxList{}, api.FieldError(api.CodeInvalid, "limit", "leave it out for 100", "%d isn't between 1 and %d", page, maxPage)
	}
	if q.State != "" && len(after(q.State)) == 0 && !q.State.Ended() {
		return api.SandboxList{}, api.FieldError(api.CodeInvalid, "state", "use running, stopped, …", "%q isn't a state", spec.Clip(string(q.State)))
	}
	from, fromID, err := parseCursor(q.Cursor)
	if err != nil {
		return api.SandboxList{}, err
	}
	out := api.SandboxList{Items: []api.Sandbox{}}
	if project == "" || q.Project != "" && q.Project != project {
		return out, nil
	}
	for _, sb := range e.all() {
		if q.Cursor != "" && !(sb.created.Before(from) || sb.created.Equal(from) && sb.id < fromID) || sb.project != project {
			continue
		}
		v := sb.view()
		if q.State != "" && v.State != q.State || !matches(v.Spec.Labels, q.Labels) {
			continue
		}
		if len(out.Items) == page {
			last := out.Items[page-1]
			out.Cursor = cursor(last.CreatedAt, last.ID)
			break
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

func matches(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

func cursor(at time.Time, id string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", at.UnixNano(), id))
}

func parseCursor(s string) (time.Time, string, error) {
	if s == "" {
		return time.Time{}, "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	nanos, id, ok := strings.Cut(string(raw), ".")
	var n int64
	if err == nil && ok && validID(id) {
		if _, err := fmt.Sscanf(nanos, "%d", &n); err == nil && fmt.Sprint(n) == nanos {
			return time.Unix(0, n), id, nil
		}
	}
	return time.Time{}, "", api.FieldError(api.CodeInvalid, "cursor", "use the cursor of the page before, unchanged", "%q isn't one", spec.Clip(s))
}

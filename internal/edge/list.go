package edge

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/edge/instance"
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
	out := api.SandboxList{Items: []api.Sandbox{}}
	page, after, err := q.check()
	if err != nil || project == "" || q.Project != "" && q.Project != project {
		return out, err
	}
	for _, sb := range e.all() {
		if sb.project != project || !after.passed(sb) {
			continue
		}
		v := sb.view()
		if q.State != "" && v.State != q.State || !matches(v.Spec.Labels, q.Labels) {
			continue
		}
		if len(out.Items) == page {
			last := out.Items[page-1]
			out.Cursor = place{last.CreatedAt, last.ID}.String()
			break
		}
		out.Items = append(out.Items, v)
	}
	return out, nil
}

// check returns the size of a page and the place to go on from.
func (q *listQuery) check() (int, place, error) {
	page := defaultPage
	if q.Limit != nil {
		page = *q.Limit
	}
	if page < 1 || page > maxPage {
		return 0, place{}, api.FieldError(api.CodeInvalid, "limit", "leave it out for 100", "%d isn't between 1 and %d", page, maxPage)
	}
	if q.State != "" && !slices.Contains(api.States(), q.State) {
		return 0, place{}, api.FieldError(api.CodeInvalid, "state", "use running, stopped, …", "%q isn't a state", spec.Clip(string(q.State)))
	}
	from, err := parsePlace(q.Cursor)
	return page, from, err
}

func matches(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// place is where a page ended: at this sandbox. The zero place is before all.
type place struct {
	created time.Time
	id      string
}

func (p place) passed(sb *sandbox) bool {
	return p.id == "" || sb.created.Before(p.created) || sb.created.Equal(p.created) && sb.id < p.id
}

func (p place) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", p.created.UnixNano(), p.id))
}

func parsePlace(s string) (place, error) {
	if s == "" {
		return place{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	nanos, id, _ := strings.Cut(string(raw), ".")
	n, nerr := strconv.ParseInt(nanos, 10, 64)
	if p := (place{time.Unix(0, n), id}); err == nil && nerr == nil && instance.ValidID(id) && p.String() == s {
		return p, nil
	}
	return place{}, api.FieldError(api.CodeInvalid, "cursor", "use the cursor of the page before, unchanged", "%q isn't one", spec.Clip(s))
}

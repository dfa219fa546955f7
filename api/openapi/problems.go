package openapi

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// codeSet is the codes of one status that an operation can meet.
type codeSet struct {
	status int
	codes  []string
}

func codeSets(all []api.Code) []codeSet {
	by := map[int]*codeSet{}
	for _, c := range all {
		s := by[c.Status()]
		if s == nil {
			s = &codeSet{status: c.Status()}
			by[c.Status()] = s
		}
		s.codes = append(s.codes, string(c))
	}
	out := make([]codeSet, 0, len(by))
	for _, status := range slices.Sorted(maps.Keys(by)) {
		s := by[status]
		slices.Sort(s.codes)
		s.codes = slices.Compact(s.codes)
		out = append(out, *s)
	}
	return out
}

func (s *codeSet) name() string { return strconv.Itoa(s.status) + "-" + strings.Join(s.codes, "-") }

func (s *codeSet) schema() *Schema {
	enum := make([]any, len(s.codes))
	for i, c := range s.codes {
		enum[i] = c
	}
	return &Schema{AllOf: []*Schema{
		{Ref: "#/components/schemas/Problem"}, {Properties: Properties{{"code", &Schema{Enum: enum}}}},
	}}
}

func (s *codeSet) response() object {
	return object{{"description", strings.Join(s.codes, ", ")}, {"content", object{{mediaProblem, object{{"schema", s.schema()}}}}}}
}

// problemResponses are the answers of failure that operations share.
func (d *Document) problemResponses() object {
	by := map[string]codeSet{}
	for i := range d.Operations {
		for _, s := range codeSets(d.Operations[i].Codes) {
			by[s.name()] = s
		}
	}
	out := object{}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		s := by[name]
		out = append(out, member{name, s.response()})
	}
	return out
}

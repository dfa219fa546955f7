package page

import (
	"regexp"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api/openapi"
)

func page(t *testing.T) (*openapi.Document, Page) {
	t.Helper()
	d, err := openapi.New([]string{"POST /v1/<later>"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(d)
	if err != nil {
		t.Fatal(err)
	}
	return d, p
}

// TestPageIsWhole: everything of the description is on it, every link of its own leads somewhere, and nothing is loaded.
func TestPageIsWhole(t *testing.T) {
	d, p := page(t)
	html := string(p.HTML)
	ids := map[string]bool{}
	for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(html, -1) {
		if ids[m[1]] {
			t.Errorf("two elements are called %s", m[1])
		}
		ids[m[1]] = true
	}
	var want []string
	for _, op := range d.Operations {
		want = append(want, op.ID)
	}
	for _, s := range d.Schemas {
		want = append(want, "type-"+s.Name)
	}
	for _, c := range d.Problems {
		want = append(want, "code-"+string(c.Code))
	}
	for _, m := range regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(html, -1) {
		if id, ok := strings.CutPrefix(m[1], "#"); ok {
			want = append(want, id)
		} else if m[1] != "/openapi.json" {
			t.Errorf("the page links to %s", m[1])
		}
	}
	for _, id := range want {
		if !ids[id] {
			t.Errorf("the page has no %s", id)
		}
	}
	if m := regexp.MustCompile(`(?i)<link|<img|<iframe|<form|@import|url\(|src=|https?://|ZgotmplZ| on\w+="| style="`).FindString(html); m != "" {
		t.Errorf("the page has %q, which its policy forbids or which isn't here", m)
	}
	if !strings.Contains(html, "/v1/&lt;later&gt;") {
		t.Error("what isn't built isn't on the page, or isn't escaped")
	}
}

// TestPolicyFitsThePage: the digests are those of what stands between the tags.
func TestPolicyFitsThePage(t *testing.T) {
	_, p := page(t)
	html := string(p.HTML)
	between := func(tag string) string {
		_, rest, _ := strings.Cut(html, "<"+tag+">")
		body, _, _ := strings.Cut(rest, "</"+tag+">")
		return body
	}
	if want := policy(between("style"), between("script")); p.Policy != want {
		t.Errorf("policy = %s, want %s", p.Policy, want)
	}
	if strings.Count(html, "<script") != 1 || strings.Count(html, "<style") != 1 {
		t.Error("there is more than one script or style")
	}
}

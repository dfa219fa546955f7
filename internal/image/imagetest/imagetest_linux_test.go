package imagetest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithLeavesTheTreeAlone(t *testing.T) {
	a := Tree{"x": {Content: "1"}}
	b := a.With(Tree{"x": {Content: "2"}, "y": {}})
	if diff := cmp.Diff(Tree{"x": {Content: "1"}}, a); diff != "" {
		t.Errorf("the tree has changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Tree{"x": {Content: "2"}, "y": {}}, b); diff != "" {
		t.Errorf("With() (-want +got):\n%s", diff)
	}
}

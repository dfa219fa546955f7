package edge

import (
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
)

// TestImagesOfNobody: without a project nothing is told about images, and without a store nothing is done about them.
func TestImagesOfNobody(t *testing.T) {
	n := startNode(t, nil)
	methods := 0
	for method := range n.edge.handlers() {
		if !strings.HasPrefix(method, "image.") {
			continue
		}
		methods++
		wantCode(t, n.call(t.Context(), as("", method, "", nil), nil), api.CodeUnauthenticated)
		wantCode(t, n.call(t.Context(), as("p", method, "", nil), nil), api.CodeNotImplemented)
	}
	if methods != 7 {
		t.Errorf("%d methods about images, want 7", methods)
	}
}

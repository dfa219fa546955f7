package aetherbin_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/dsec-io/dsec/internal/aetherbin"
)

// Both builds are right: what matters is that one can tell them apart.
func TestProgramIsAnELFFileOrMissing(t *testing.T) {
	b, err := aetherbin.Program()
	if errors.Is(err, aetherbin.ErrMissing) {
		return
	}
	if err != nil || !bytes.HasPrefix(b, []byte("\x7fELF")) {
		t.Errorf("Program() = %.4q, %v", b, err)
	}
}

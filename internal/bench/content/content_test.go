package content

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"testing"
	"testing/iotest"
)

// TestContent: what is read is taken by the checker in whatever pieces, and nothing else is.
func TestContent(t *testing.T) {
	c := New(9*blockSize + 5)
	all, err := io.ReadAll(iotest.HalfReader(c.Reader()))
	if err != nil || int64(len(all)) != c.Size {
		t.Fatalf("%d bytes, %v", len(all), err)
	}
	if sum := sha256.Sum256(all); hex.EncodeToString(sum[:]) != c.Digest {
		t.Error("the digest isn't that of the content")
	}
	take := func(b []byte) error {
		w := c.Checker()
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{bytes.NewReader(b)}, make([]byte, 70_001))
		if err == nil {
			err = w.Whole()
		}
		return err
	}
	if err := take(all); err != nil {
		t.Error(err)
	}
	swapped := bytes.Clone(all)
	copy(swapped, all[8*blockSize:9*blockSize]) // these two have the same random bytes
	copy(swapped[8*blockSize:], all[:blockSize])
	flipped := bytes.Clone(all)
	flipped[blockSize+77] ^= 1
	for what, b := range map[string][]byte{"less": all[:len(all)-1], "more": append(bytes.Clone(all), 0), "a wrong bit": flipped, "blocks in another order": swapped} {
		if take(b) == nil {
			t.Errorf("%s is taken", what)
		}
	}
}

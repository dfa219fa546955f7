package memfd_test

import (
	"io"
	"os"
	"testing"

	"github.com/dsec-io/dsec/internal/linux/memfd"
	"golang.org/x/sys/unix"
)

func TestSealedCantBeChanged(t *testing.T) {
	fd, err := memfd.Sealed("test", []byte("hello"), 0o555)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	if b, err := io.ReadAll(f); err != nil || string(b) != "hello" {
		t.Errorf("content %q, %v", b, err)
	}
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o555 {
		t.Errorf("stat %v, %v", st, err)
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("written to")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("truncated")
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err == nil {
		t.Error("seals aren't sealed")
	}
}

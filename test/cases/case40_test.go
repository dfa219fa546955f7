package cases

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// drain reads to the end.
func drain(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

func TestCase40ReadingSpecialFiles(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	testbed.Output(t, sb, "mkfifo /fifo && ln -s /dev/zero /zero && truncate -s 1024G /sparse && mkdir /dir")
	const soon = 5 * time.Second // a loaded machine's second
	for name, codes := range map[string][]api.Code{
		"/fifo": {api.CodeNotRegular}, "/dev/zero": {api.CodeNotRegular}, "/zero": {api.CodeNotRegular}, "/dev/null": {api.CodeNotRegular},
		"/dev/tty":       {api.CodeNotRegular, api.CodeFileNotFound},
		"/proc/kmsg":     {api.CodePermissionDenied, api.CodeNotRegular, api.CodeFileNotFound},
		"/proc/self/mem": {api.CodeFileNotFound}, "/proc/1/mem": {api.CodePermissionDenied, api.CodeNotRegular, api.CodeFileNotFound},
		"/sparse": {api.CodeTooLarge}, "/dir": {api.CodeIsDirectory},
	} {
		start := time.Now()
		_, err := f.ReadFile(t.Context(), name)
		ok := false
		for _, code := range codes {
			ok = ok || libdsec.IsCode(err, code)
		}
		if took := time.Since(start); !ok || took > soon {
			t.Errorf("read %s: %v after %v; want one of %v", name, err, took, codes)
		}
	}
	if _, err := f.WriteFile(t.Context(), "/zero", []byte("x"), libdsec.WriteOptions{}); !libdsec.IsCode(err, api.CodeNotRegular) {
		t.Errorf("write to a device: %v", err)
	}
	// The writer of the pipe is still the one to wait for: nothing of ours has opened it for good.
	r, err := f.Open(t.Context(), "/sparse", libdsec.ReadOptions{Offset: 1<<40 - 10})
	if err != nil || r.Info.Size != 1<<40 {
		t.Fatalf("open a sparse file: %v", err)
	}
	if n, err := io.Copy(io.Discard, r); n != 10 || err != nil {
		t.Errorf("its end: %d bytes, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if got, err := f.ReadFile(t.Context(), "/proc/version"); err != nil || len(got) == 0 {
		t.Errorf("a file without a size: %q, %v", got, err)
	}
}

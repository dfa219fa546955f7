package container_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/backend/backendtest"
	"github.com/dsec-io/dsec/internal/edge"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/internal/leakcheck"
)

// buildImage makes an image with nothing but a static program, and what more gives.
func (h *host) buildImage(t *testing.T, name string, more imagetest.Tree) {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	h.images = t.TempDir()
	imagetest.Build(t, h.images, name, imagetest.Tree{"busybox": {Mode: 0o755, Content: string(busybox)}}.With(more), image.Config{})
}

func execOut(t *testing.T, box edge.Box, argv ...string) string {
	t.Helper()
	out, ended, err := backendtest.Exec(t.Context(), box, argv...)
	if err != nil {
		t.Errorf("%v: %v (%+v)", argv, err, ended)
	}
	return out
}

// Nothing of the platform may need a program, a directory or a file of the image.
func TestScratchImage(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"i", 0)
	leakcheck.CheckInstance(t, h.instance)
	h.buildImage(t, "scratch", nil)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	p := params("scratch", "p")
	p.Spec.Image, p.Spec.Workdir, p.Spec.User, p.Spec.Hostname = "scratch", "/deep/down/work", "1234:5678", "other-name"
	box := mustStart(t, b, p)
	for _, c := range []struct{ argv, want string }{
		{"stat -c %u:%g /deep/down/work", "1234:5678\n"},
		{"stat -c %u:%g /deep/down", "0:0\n"},
		{"cat /etc/hostname", "other-name\n"},
		{"grep -c other-name /etc/hosts", "1\n"},
		{"stat -c %a /tmp /dev/shm", "1777\n1777\n"},
		{"head -c 2 /dev/zero", "\x00\x00"},
		{"cat /proc/sys/kernel/hostname", "other-name\n"},
	} {
		argv := append([]string{"/busybox"}, strings.Fields(c.argv)...)
		if got := execOut(t, box, argv...); got != c.want {
			t.Errorf("%s: %q, want %q", c.argv, got, c.want)
		}
	}
	if err := box.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// An image is made by anybody: what it puts in the way of the set-up must neither reach the host nor hang us.
func TestHostileImage(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"h", 0)
	leakcheck.CheckInstance(t, h.instance)
	h.buildImage(t, "hostile", imagetest.Tree{
		"etc":              {Mode: fs.ModeSymlink, Content: "/proc/self/root/tmp"},
		"disk":             {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 1}, // /dev/mem
		"nothing":          {Mode: fs.ModeDevice | fs.ModeCharDevice | 0o666, Major: 1, Minor: 3},
		"work":             {Mode: fs.ModeSymlink, Content: "/tmp"},
		"tmp":              {Mode: fs.ModeDir | 0o777},
		"dev/pts/.keep":    {Content: "x"},
		"usr/bin/setuid":   {Mode: 0o755 | fs.ModeSetuid, Content: "#!/busybox sh\n"},
		"root/owned-by-30": {UID: 30, GID: 40, Content: "x"},
	})
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	p := params("hostile", "p")
	p.Spec.Image, p.Spec.Workdir = "hostile", "/work/dir"
	box := mustStart(t, b, p)
	for _, c := range []struct{ script, want string }{
		{"readlink /etc", "/proc/self/root/tmp\n"},
		{"cat /disk 2>&1 | head -c 100", "cat: can't open '/disk': Permission denied\n"},
		{"(echo x >/nothing) 2>/dev/null || echo refused", "refused\n"},
		{"[ -d /tmp/dir ] && echo through the link", "through the link\n"},
		{"stat -c %u:%g /root/owned-by-30", "30:40\n"},
	} {
		if got := execOut(t, box, "/busybox", "sh", "-c", "export PATH=/; alias x=; "+withBusybox(c.script)); got != c.want {
			t.Errorf("%s: %q, want %q", c.script, got, c.want)
		}
	}
	if err := box.Stop(t.Context()); err != nil {
		t.Error(err)
	}

	// What can't be set up is refused by name, and leaves nothing.
	h.buildImage(t, "broken", imagetest.Tree{"dev/null": {Mode: fs.ModeDir}})
	other := newHost(t, h.instance+"2", 0)
	leakcheck.CheckInstance(t, other.instance)
	other.images = h.images
	b2 := other.open(t)
	b2.Warm()
	t.Cleanup(func() { other.close(t, b2) })
	p = params("broken", "p")
	p.Spec.Image = "broken"
	if _, err := b2.Start(t.Context(), p); err == nil || !strings.Contains(err.Error(), "dev/null") {
		t.Errorf("Start() with a directory in the place of /dev/null = %v", err)
	}
}

// Devices and file systems are put into a root before it is the sandbox's: a link of the image's would lead to the host.
func TestImageWithLinksToTheHost(t *testing.T) {
	outside := t.TempDir()
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		if err := os.WriteFile(filepath.Join(outside, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for i, dir := range []string{"dev", "proc", "sys"} {
		for j, to := range []string{outside, strings.Repeat("../", 20) + outside, "/proc/1/root", "etc"} {
			h := newHost(t, fmt.Sprintf("k%dl%d%d", os.Getpid(), i, j), 0)
			leakcheck.CheckInstance(t, h.instance)
			h.buildImage(t, "links", imagetest.Tree{dir: {Mode: fs.ModeSymlink, Content: to}})
			b := h.open(t)
			b.Warm()
			p := params("links", "p")
			p.Spec.Image = "links"
			_, err := b.Start(t.Context(), p)
			if e := api.AsError(err); err == nil || e.Code != api.CodeImpossible || e.Field != "image" || !strings.Contains(e.Detail, "/"+dir) {
				t.Errorf("Start() of an image with %s -> %s = %v", dir, to, err)
			}
			h.close(t, b)
		}
	}
}

// withBusybox makes the applets of a script be found: there are no links for them in the image.
func withBusybox(script string) string {
	for _, applet := range []string{"readlink", "cat", "stat", "head"} {
		script = strings.ReplaceAll(script, applet+" ", "/busybox "+applet+" ")
	}
	return script
}

// The budget is one descriptor per sandbox.
func TestDescriptorsPerSandbox(t *testing.T) {
	h := newHost(t, "k"+strconv.Itoa(os.Getpid())+"d", 0)
	leakcheck.CheckInstance(t, h.instance)
	b := h.open(t)
	b.Warm()
	t.Cleanup(func() { h.close(t, b) })
	first := mustStart(t, b, params("first", "p"))
	count := func() int {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d)
	}
	before := count()
	const n = 20
	boxes := []edge.Box{first}
	for i := range n {
		boxes = append(boxes, mustStart(t, b, params("n"+strconv.Itoa(i), "p")))
	}
	if got := count() - before; got != n {
		t.Errorf("%d descriptors for %d sandboxes", got, n)
	}
	for _, box := range boxes {
		if err := box.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// Files are being removed in the background for a moment.
	until(t, "all descriptors closed", func() bool { return count() < before })
}

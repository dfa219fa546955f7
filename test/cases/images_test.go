package cases

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// tarFile is an entry of a tar; its size is that of its content.
type tarFile struct {
	tar.Header
	content string
}

func tarOf(t testing.TB, files ...tarFile) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		f.Size, f.Format = int64(len(f.content)), tar.FormatPAX
		err := w.WriteHeader(&f.Header)
		if err == nil {
			_, err = io.WriteString(w, f.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// netRaw is the attribute of a file whose programs may open raw sockets.
const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// imageLayers are the layers of an image with everything in it that an import can lose.
func imageLayers(t testing.TB) [][]byte {
	t.Helper()
	busybox, err := os.ReadFile(need.Command(t, "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), need.Command(t, "busybox"), "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	base := []tarFile{
		{tar.Header{Name: "bin/busybox", Mode: 0o755}, string(busybox)},
		{tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/srv:/bin/sh\n"},
		{tar.Header{Name: "cap/ping", Mode: 0o755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": netRaw}}, string(busybox)},
		{tar.Header{Name: "suid", Mode: 0o4755}, "x"},
		{tar.Header{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 1000, Gid: 1000}, ""},
		{tar.Header{Name: "srv/edge", Mode: 0o640, Uid: 65535, Gid: 65534}, ""},
		{tar.Header{Name: "old/gone", Mode: 0o644}, "gone"},
		{tar.Header{Name: "old/kept", Mode: 0o644}, "kept"},
		{tar.Header{Name: "opaque/below", Mode: 0o644}, "below"},
	}
	for name := range strings.FieldsSeq(string(list)) {
		if name != "busybox" {
			base = append(base, tarFile{tar.Header{Name: "bin/" + name, Typeflag: tar.TypeLink, Linkname: "bin/busybox"}, ""})
		}
	}
	return [][]byte{tarOf(t, base...), tarOf(t,
		tarFile{tar.Header{Name: "old/.wh.gone"}, ""},
		tarFile{tar.Header{Name: "opaque/.wh..wh..opq"}, ""},
		tarFile{tar.Header{Name: "opaque/above", Mode: 0o644}, "above"})}
}

// savedImage packs layers as `docker save` does.
func savedImage(t testing.TB, layers [][]byte) []byte {
	t.Helper()
	var files []tarFile
	var names, ids []string
	for i, l := range layers {
		sum := sha256.Sum256(l)
		ids = append(ids, "sha256:"+hex.EncodeToString(sum[:]))
		names = append(names, fmt.Sprintf("%d/layer.tar", i))
		files = append(files, tarFile{tar.Header{Name: names[i], Mode: 0o644}, string(l)})
	}
	type object = map[string]any
	for name, v := range map[string]any{
		"manifest.json": []object{{"Config": "config.json", "Layers": names}},
		"config.json": object{
			"os": "linux", "architecture": runtime.GOARCH, "rootfs": object{"diff_ids": ids},
			"config": object{"User": "app", "WorkingDir": "/srv", "Env": []string{"PATH=/bin", "FROM=image"}, "Entrypoint": []string{"sh", "-c"}, "Cmd": []string{"id -u; pwd; echo $FROM"}},
		},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, tarFile{tar.Header{Name: name, Mode: 0o644}, string(b)})
	}
	return tarOf(t, files...)
}

// TestImportedImage runs a sandbox of an imported image at once, and finds in it what the archive had: whiteouts, opaque
// folders, hard links, capabilities, setuid and owners, and the image's configuration.
func TestImportedImage(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	images := n.Client.Images()
	layers := imageLayers(t)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(savedImage(t, layers))
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	made, err := images.Import(t.Context(), "app", bytes.NewReader(packed.Bytes()), libdsec.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again, err := images.Import(t.Context(), "app", bytes.NewReader(packed.Bytes()), libdsec.ImportOptions{})
	if err != nil || made.Digest != again.Digest {
		t.Errorf("the second import = %+v, %v; the first was %s", again, err, made.Digest)
	}
	sb := n.Create(t, api.Spec{Image: "app"})
	r, err := sb.Exec(t.Context(), libdsec.Cmd{})
	if err != nil || string(r.Stdout) != "1000\n/srv\nimage\n" {
		t.Errorf("the image's own command = %+v, %v", r, err)
	}
	for script, want := range map[string]string{
		"cat old/kept; ls old": "keptkept", "ls opaque": "above", "stat -c '%a %u %g' suid": "4755 0 0",
		"stat -c '%a %u %g' srv srv/edge": "750 1000 1000\n640 65535 65534",
		"[ $(stat -c %i bin/ls) = $(stat -c %i bin/busybox) ] && [ $(stat -c %h bin/ls) -gt 100 ] && echo linked": "linked",
	} {
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Shell: script, Cwd: "/", User: "root"})
		if err != nil || strings.TrimSpace(string(r.Stdout)) != want {
			t.Errorf("%s = %q %q, %v; want %q", script, r.Stdout, r.Stderr, err, want)
		}
	}
	// A capability counts where it is one: the same program without it may not.
	for path, code := range map[string]int{"/cap/ping": 0, "/bin/ping": 1} {
		r, err := sb.Exec(t.Context(), libdsec.Cmd{Argv: []string{path, "-c1", "-W2", "127.0.0.1"}})
		if err != nil || !exitsWith(r.ExitStatus, code) {
			t.Errorf("%s as app = %+v %s%s, %v; want exit code %d", path, r.ExitStatus, r.Stdout, r.Stderr, err, code)
		}
	}
}

// TestImageInUse: an image isn't removed below sandboxes unasked; when it is, they go on, and its name is free.
func TestImageInUse(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	images := n.Client.Images()
	base := imageLayers(t)[0]
	if _, err := images.Import(t.Context(), "mine", bytes.NewReader(base), libdsec.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	sb := n.Create(t, api.Spec{Image: "mine"})
	im, err := images.Inspect(t.Context(), "mine")
	if err != nil || im.InUse != 1 {
		t.Errorf("Inspect() = %+v, %v", im, err)
	}
	if _, err := images.Remove(t.Context(), "mine", libdsec.RemoveImageOptions{}); !libdsec.IsCode(err, api.CodeConflict) {
		t.Errorf("Remove() of an image in use = %v", err)
	}
	if done, err := images.GC(t.Context(), libdsec.GCOptions{All: true}); err != nil || len(done.Removed) > 0 {
		t.Errorf("GC() = %+v, %v", done, err)
	}
	if done, err := images.Remove(t.Context(), "mine", libdsec.RemoveImageOptions{Force: true}); err != nil || done.FreedBytes < 1<<20 {
		t.Errorf("Remove() by force = %+v, %v", done, err)
	}
	if got := testbed.Output(t, sb, "cat /old/gone"); got != "gone" {
		t.Errorf("a file of the removed image is %q", got)
	}
	if _, err := n.Client.Create(t.Context(), api.Spec{Image: "mine"}); !libdsec.IsCode(err, api.CodeNoSuchImage) {
		t.Errorf("Create() from a removed image = %v", err)
	}
	// Another image under the name: new sandboxes have it, the old one doesn't.
	other := tarOf(t, tarFile{tar.Header{Name: "old/gone"}, "other"})
	if _, err := images.Import(t.Context(), "mine", io.MultiReader(bytes.NewReader(base[:len(base)-1024]), bytes.NewReader(other)), libdsec.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	for box, want := range map[*libdsec.Sandbox]string{sb: "gone", n.Create(t, api.Spec{Image: "mine"}): "other"} {
		if got := testbed.Output(t, box, "cat /old/gone"); got != want {
			t.Errorf("the file is %q, want %q", got, want)
		}
	}
	if _, err := images.Remove(t.Context(), "busybox", libdsec.RemoveImageOptions{}); !libdsec.IsCode(err, api.CodeForbidden) {
		t.Errorf("Remove() of the machine's image = %v", err)
	}
}

// TestImportKilled kills the node in the middle of an upload. The next one has nothing of it, and imports it whole.
func TestImportKilled(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	b := tarOf(t, tarFile{tar.Header{Name: "f"}, strings.Repeat("x", 4<<20)})
	r, w := io.Pipe()
	failed := make(chan error, 1)
	go func() {
		_, err := n.Client.Images().Import(t.Context(), "x", r, libdsec.ImportOptions{})
		failed <- errors.Join(err, r.CloseWithError(errors.New("over")))
	}()
	if _, err := w.Write(b[:3<<20]); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(n.Dir, "images")
	testbed.Until(t, time.Minute, "the upload's folder", func() bool { return len(folder(t, store)) == 1 })
	n.Kill(t)
	if err := <-failed; err == nil {
		t.Error("the import says nothing of its node's end")
	}
	n.Restart(t)
	if got := folder(t, store); len(got) > 0 {
		t.Errorf("the store has %q", got)
	}
	if _, err := n.Client.Images().Inspect(t.Context(), "x"); !libdsec.IsCode(err, api.CodeNoSuchImage) {
		t.Errorf("Inspect() = %v", err)
	}
	if _, err := n.Client.Images().Import(t.Context(), "x", bytes.NewReader(b), libdsec.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x"}, folder(t, store)); diff != "" {
		t.Errorf("the store (-want +got):\n%s", diff)
	}
}

func folder(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestCase66ImageNames: a name works or is refused at once, never later.
func TestCase66ImageNames(t *testing.T) {
	n := testbed.Start(t, testbed.Options{})
	images := n.Client.Images()
	b := tarOf(t, tarFile{tar.Header{Name: "f"}, "x"})
	long := strings.Repeat("a", 200)
	for name, ok := range map[string]bool{
		long[:64]: true, long[:65]: true, long[:128]: true, long[:129]: false, long: false, "1st": true, "a.b_c-d": true, "gc": true,
		"Upper": false, "ünïcode": false, "-x": false, ".x": false, "": false, "..": false, "a/b": false, "a b": false, "a\x00": false, "%2e": false,
	} {
		_, err := images.Import(t.Context(), name, bytes.NewReader(b), libdsec.ImportOptions{})
		if ok != (err == nil) || !ok && !libdsec.IsCode(err, api.CodeInvalid) {
			t.Errorf("Import(%q) = %v", name, err)
		}
		if im, err := images.Inspect(t.Context(), name); ok != (err == nil) || ok && im.Name != name {
			t.Errorf("Inspect(%q) = %+v, %v", name, im, err)
		}
		if _, err := images.Remove(t.Context(), name, libdsec.RemoveImageOptions{}); ok != (err == nil) {
			t.Errorf("Remove(%q) = %v", name, err)
		}
		if !ok {
			_, err := n.Client.Create(t.Context(), api.Spec{Image: name})
			if !libdsec.IsCode(err, api.CodeInvalid) {
				t.Errorf("Create(%q) = %v", name, err)
			}
		}
	}
}

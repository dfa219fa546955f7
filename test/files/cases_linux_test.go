package files

import (
	"archive/tar"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/image"
	"github.com/dsec-io/dsec/internal/image/imagetest"
	"github.com/dsec-io/dsec/libdsec"
	"github.com/dsec-io/dsec/test/testbed"
)

// mustDo demands that what was done to a file worked.
func mustDo(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// TestCase23UploadOfWhatIsTooLongForAnArgument uploads what no command line takes, in every way that there is, and runs it.
// A limit that the client sets itself is told as such.
func TestCase23UploadOfWhatIsTooLongForAnArgument(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	sb := n.Create(t, api.Spec{})
	script := strings.Repeat("n=$((n+1)); #0123456789abcdef0123456789abcdef\n", 1<<20/46) + "echo $n\n"
	plain := faced{n, sb.ID()}
	for name, upload := range map[string]func(path string) error{
		"sdk": func(path string) error {
			_, err := sb.Files().WriteFile(t.Context(), path, []byte(script), libdsec.WriteOptions{})
			return err
		},
		"rest": func(path string) error {
			if status, body := plain.do(t, http.MethodPut, url.Values{"path": {path}}, strings.NewReader(script)); status != http.StatusOK {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		},
		"rest-of-unknown-length": func(path string) error {
			status, body := plain.do(t, http.MethodPut, url.Values{"path": {path}}, struct{ io.Reader }{strings.NewReader(script)})
			if status != http.StatusOK {
				return fmt.Errorf("%d %s", status, body)
			}
			return nil
		},
	} {
		path := "/" + name
		mustDo(t, name, upload(path))
		wantContent(t, sb.Files(), path, script)
		if got := testbed.Output(t, sb, "sh "+path); got != fmt.Sprint(1<<20/46) {
			t.Errorf("%s: the script counts to %s", name, got)
		}
		if digest, err := sb.Files().Digest(t.Context(), path); err != nil || digest != fmt.Sprintf("%x", sha256.Sum256([]byte(script))) {
			t.Errorf("%s: the digest is %s, %v", name, digest, err)
		}
	}
	status, body := plain.do(t, http.MethodPut, url.Values{"path": {"/no"}, "max_bytes": {"1000000"}}, strings.NewReader(script))
	wantProblem(t, status, body, api.CodeTooLarge)
	if got := testbed.Output(t, sb, "ls -d /no 2>/dev/null || echo none") + unfinished(t, sb); got != "none" {
		t.Errorf("left behind: %s", got)
	}
}

// TestCase26FilesWithoutAnyShell does everything that can be done to files in an image of one static program: nothing of
// it needs a shell, a mkdir or a list of users.
func TestCase26FilesWithoutAnyShell(t *testing.T) {
	t.Parallel()
	n := testbed.Shared(t)
	imagetest.Build(t, filepath.Join(n.Dir, "images"), "files-scratch", imagetest.Scratch(t), image.Config{})
	sb := n.Create(t, api.Spec{Image: "files-scratch"})
	f := sb.Files()
	ctx := t.Context()
	_, err := f.MkdirAll(ctx, "/d/sub", new(uint32(0o777)))
	mustDo(t, "mkdir", err)
	_, err = f.Chmod(ctx, "/d", 0o777)
	mustDo(t, "chmod", err)
	w, _ := begin(t, f, "/d", true)
	app := f.As("1234:5678")
	put(t, app, "/d/made/by/f", "content")
	if info, err := f.Stat(ctx, "/d/made/by/f"); err != nil || info.UID != 1234 || info.GID != 5678 || info.Mode != 0o644 || info.Size != 7 {
		t.Errorf("stat: %+v, %v", info, err)
	}
	w.until("create /d/made/")
	_, err = f.Chown(ctx, "/d/made/by/f", new(uint32(1)), new(uint32(2)))
	mustDo(t, "chown", err)
	_, err = f.Symlink(ctx, "by/f", "/d/made/link")
	mustDo(t, "symlink", err)
	wantContent(t, f, "/d/made/link", "content")
	_, err = f.Rename(ctx, "/d/made", "/d/moved")
	mustDo(t, "rename", err)
	r, err := f.Open(ctx, "/d/moved/by/f", libdsec.ReadOptions{Offset: 3, Length: 2})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := io.ReadAll(r); string(part) != "te" || err != nil {
		t.Errorf("a range: %q, %v", part, err)
	}
	mustDo(t, "close", r.Close())
	tree, err := f.Tar(ctx, "/d")
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Untar(ctx, "/copy", tree)
	mustDo(t, "untar", err)
	mustDo(t, "tar", tree.Close())
	wantContent(t, f, "/copy/moved/link", "content")
	if listed := names(t, f, "/copy"); got != 6 || listed != "moved sub" {
		t.Errorf("%d entries; %s", got, listed)
	}
	mustDo(t, "remove", f.RemoveAll(ctx, "/d/moved"))
	mustDo(t, "remove", f.Remove(ctx, "/copy/moved/link"))
	if ok, err := f.Exists(ctx, "/d/moved"); ok || err != nil {
		t.Errorf("removed: %v, %v", ok, err)
	}
	_, err = f.As("app").ReadFile(ctx, "/copy/moved/by/f")
	wantCode(t, err, api.CodeNoSuchUser)
	if r, err := sb.Exec(ctx, libdsec.Cmd{Argv: []string{"/hello"}}); err != nil || string(r.Stdout) != "hello\n" {
		t.Errorf("%+v, %v", r, err)
	}
}

// names lists a directory, in order.
func names(t testing.TB, f *libdsec.Files, dir string) string {
	t.Helper()
	var all []string
	for info, err := range f.List(t.Context(), dir) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, info.RawName())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestCase31NoOperationLeaves does everything that can be done to files through links to a file of the host's and to its
// directory: what it finds, makes and changes is the sandbox's.
func TestCase31NoOperationLeaves(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	ctx := t.Context()
	host := t.TempDir()
	canary := filepath.Join(host, "canary")
	if err := os.WriteFile(canary, []byte("host"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{host, filepath.Dir(host)} { // others' rights aren't what keeps the sandbox out
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.Stat(canary)
	if err != nil {
		t.Fatal(err)
	}
	testbed.Output(t, sb, "mkdir /w && cd /w && ln -s "+canary+" c && ln -s "+host+" h && ln -s ../../../../../.. u && : > f")
	for _, there := range []string{"/w/c", "/w/h/canary", "/w/u" + canary, "/w/../.." + canary} {
		for what, do := range map[string]func() error{
			"read":   func() error { _, err := f.ReadFile(ctx, there); return err },
			"digest": func() error { _, err := f.Digest(ctx, there); return err },
			"chmod":  func() error { _, err := f.Chmod(ctx, there, 0); return err },
			"chown":  func() error { _, err := f.Chown(ctx, there, new(uint32(5)), nil); return err },
			"tar":    func() error { return drain(f.Tar(ctx, there)) },
			"list": func() (err error) {
				for _, err = range f.List(ctx, filepath.Dir(there)+"/./canary/..") {
				}
				return err
			},
			"watch": func() (err error) {
				for _, err = range f.Watch(ctx, there) {
					break
				}
				return err
			},
		} {
			if err := do(); !libdsec.IsCode(err, api.CodeFileNotFound) {
				t.Errorf("%s %s: %v", what, there, err)
			}
		}
	}
	// What is made there is made inside.
	_, err = f.Untar(ctx, "/w/u"+host, packed(t, tar.Header{Name: "canary"}, tar.Header{Name: "unpacked"}))
	mustDo(t, "untar", err)
	wantContent(t, f, "/w/c", "canary")
	_, err = f.Mkdir(ctx, "/w/h/dir", nil)
	mustDo(t, "mkdir", err)
	_, err = f.Symlink(ctx, "/", "/w/h/link")
	mustDo(t, "symlink", err)
	_, err = f.Rename(ctx, "/w/f", "/w/h/canary")
	mustDo(t, "rename", err)
	_, err = f.Chmod(ctx, "/w/c", 0o600)
	mustDo(t, "chmod", err)
	if got := names(t, f, "/w/h"); got != "canary dir link unpacked" {
		t.Errorf("inside: %s", got)
	}
	mustDo(t, "remove", f.RemoveAll(ctx, "/w/u"+host))
	after, err := os.Stat(canary)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(canary)
	list, lerr := os.ReadDir(host)
	if err != nil || lerr != nil || string(raw) != "host" || len(list) != 1 || after.Mode() != before.Mode() || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("the host's file is %q, %v; beside it there is %v, %v", raw, after, list, err)
	}
}

// TestCase39EveryCall holds the rule of docs/files.md for links at the end of a path for the calls that change something.
func TestCase39EveryCall(t *testing.T) {
	t.Parallel()
	sb := testbed.Shared(t).Create(t, api.Spec{})
	f := sb.Files()
	ctx := t.Context()
	testbed.Output(t, sb, "mkdir /d && echo -n x > /d/f && ln -s d /to-dir && ln -s d/f /to-file && ln -s d/new /dangling && ln -s /no/where /lost && ln -s loop /loop")
	put(t, f, "/to-file", "written")
	put(t, f, "/dangling", "made")
	if got := testbed.Output(t, sb, "readlink /to-file; readlink /dangling; cat /d/f /d/new"); got != "d/f\nd/new\nwrittenmade" {
		t.Errorf("written through links: %q", got)
	}
	_, err := f.Untar(ctx, "/to-dir", packed(t, tar.Header{Name: "unpacked"}))
	mustDo(t, "untar", err)
	_, err = f.MkdirAll(ctx, "/to-dir", nil)
	mustDo(t, "mkdir -p", err)
	_, err = f.Chown(ctx, "/to-file", new(uint32(7)), nil)
	mustDo(t, "chown", err)
	_, err = f.Digest(ctx, "/to-file")
	mustDo(t, "digest", err)
	w, ready := begin(t, f, "/to-dir", false)
	if !ready.Dir {
		t.Errorf("%+v", ready)
	}
	put(t, f, "/d/later", "")
	for e := w.next(); e.RawPath() != "/to-dir/later"; e = w.next() {
		if e.Type == "" {
			t.Fatal("a watch through a link tells nothing")
		}
	}
	if got := testbed.Output(t, sb, "stat -c %u /d/f; ls /d"); got != "7\nf\nlater\nnew\nunpacked" {
		t.Errorf("behind the links: %q", got)
	}
	for name, want := range map[string]api.Code{"/loop": api.CodeLinkLoop, "/lost": api.CodeFileNotFound} {
		for what, do := range map[string]func() error{
			"digest": func() error { _, err := f.Digest(ctx, name); return err },
			"write":  func() error { _, err := f.WriteFile(ctx, name, nil, libdsec.WriteOptions{}); return err },
			"chown":  func() error { _, err := f.Chown(ctx, name, new(uint32(7)), nil); return err },
			"watch": func() (err error) {
				for _, err = range f.Watch(ctx, name) {
					break
				}
				return err
			},
		} {
			wantNamed(t, what+" "+name, do(), want)
		}
		_, err := f.Mkdir(ctx, name, nil)
		wantNamed(t, "mkdir "+name, err, api.CodeExists)
		_, err = f.Symlink(ctx, "x", name)
		wantNamed(t, "symlink "+name, err, api.CodeExists)
		_, err = f.Rename(ctx, name, name+"-moved")
		mustDo(t, "rename "+name, err)
		mustDo(t, "remove "+name, f.Remove(ctx, name+"-moved"))
	}
}

func wantNamed(t testing.TB, what string, err error, code api.Code) {
	t.Helper()
	if !libdsec.IsCode(err, code) {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

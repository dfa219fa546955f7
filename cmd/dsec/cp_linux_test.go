package main

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// copyBed is a sandbox of a real node, and the command line that copies to and from it.
type copyBed struct {
	*testing.T
	env []string
	id  string
}

func newCopyBed(t *testing.T) copyBed {
	t.Helper()
	b := copyBed{T: t}
	b.env, _ = realDev(t)
	b.id = strings.TrimSpace(b.ok("", "sandbox", "create", "busybox"))
	return b
}

func (b copyBed) ok(stdin string, args ...string) string {
	b.Helper()
	out, stderr, code := dsec(b.T, b.env, stdin, args...)
	if code != 0 {
		b.Fatalf("%q: %d %s", args, code, stderr)
	}
	return out
}

func (b copyBed) inside(script string) string {
	b.Helper()
	return b.ok("", "sandbox", "exec", b.id, "--", "sh", "-c", script)
}

func TestRealCopy(t *testing.T) {
	bed := newCopyBed(t)
	ok, inside, id := bed.ok, bed.inside, bed.id
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	write("src/run.sh", "#!/bin/sh\necho ran\n", 0o755)
	write("src/etc/profile.d/new", "new", 0o644)
	if err := os.Symlink("run.sh", filepath.Join(dir, "src/link")); err != nil {
		t.Fatal(err)
	}
	// A file: under its own name into a directory, or as the destination says.
	ok("", "sandbox", "cp", filepath.Join(dir, "src/run.sh"), id+":/tmp")
	ok("", "sandbox", "cp", filepath.Join(dir, "src/run.sh"), id+":/made/deep/other")
	if got := inside("/tmp/run.sh; /made/deep/other"); strings.Count(got, "ran\n") != 2 {
		t.Errorf("files: %q", got)
	}
	// A directory: merged with what is there.
	inside("mkdir -p /img/src/etc/profile.d; echo -n old > /img/src/etc/profile.d/old")
	ok("", "sandbox", "cp", filepath.Join(dir, "src"), id+":/img")
	ok("", "sb", "cp", filepath.Join(dir, "src")+"/.", id+":/flat")
	if got := inside("cat /img/src/etc/profile.d/old /img/src/etc/profile.d/new; readlink /img/src/link; /flat/link"); got != "oldnewrun.sh\nran\n" {
		t.Errorf("directory: %q", got)
	}
	// And back.
	ok("", "sandbox", "cp", id+":/img/src", filepath.Join(dir, "back"))
	ok("", "sandbox", "cp", id+":/img/src", filepath.Join(dir, "back"))
	if got := read("back/etc/profile.d/old") + read("back/link") + read("back/src/etc/profile.d/new"); got != "old#!/bin/sh\necho ran\nnew" {
		t.Errorf("back: %q", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "back/run.sh")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("mode: %v, %v", info, err)
	}
	ok("", "sandbox", "cp", id+":/img/src/etc/profile.d/old", filepath.Join(dir, "old"))
	if read("old") != "old" {
		t.Error("file back")
	}
	for _, args := range [][]string{
		{id + ":/no/such", dir},
		{filepath.Join(dir, "no-such"), id + ":/x"},
		{id + ":/tmp", id + ":/y"},
		{dir, dir},
		{"/dev/null", id + ":/null"},
		{id + ":/tmp/run.sh", filepath.Join(dir, "none/x")},
	} {
		if _, stderr, code := dsec(t, bed.env, "", append([]string{"sandbox", "cp"}, args...)...); code == 0 || stderr == "" || strings.Contains(stderr, ".dsec-") {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
}

func TestRealCopyOfTarStreams(t *testing.T) {
	bed := newCopyBed(t)
	ok, inside, id := bed.ok, bed.inside, bed.id
	inside("mkdir -p /img/src/etc/profile.d; echo -n old > /img/src/etc/profile.d/old")
	stream := ok("", "sandbox", "cp", id+":/img/src/etc", "-")
	var names strings.Builder
	for r := tar.NewReader(strings.NewReader(stream)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names.WriteString(h.Name + "\n")
	}
	if !strings.Contains(names.String(), "profile.d/old\n") {
		t.Errorf("names: %s", names.String())
	}
	inside("mkdir -m 777 /untarred")
	ok(stream, "sandbox", "cp", "-", id+":/untarred", "--user", "1000:1000")
	if got := inside("cat /untarred/profile.d/old; stat -c %u /untarred/profile.d"); got != "old1000\n" {
		t.Errorf("tar in: %q", got)
	}
}

// TestCase43CopyBothWays copies a tree onto one that is there already, up and down, and what is in it: all of both is there
// afterwards, the source's where both have it.
func TestCase43CopyBothWays(t *testing.T) {
	bed := newCopyBed(t)
	ok, inside, id := bed.ok, bed.inside, bed.id
	dir := t.TempDir()
	tree := func(name, text string, files ...string) {
		t.Helper()
		for _, f := range files {
			f = filepath.Join(dir, name, f)
			if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Sorted before and after what is there, at every depth.
	tree("etc", "local\n", "a", "both", "profile.d/b", "profile.d/both", "profile.d/z", "deep/er/new", "z/new")
	const there = "mkdir -p $d/etc/profile.d $d/etc/deep/er $d/etc/old; cd $d/etc; for f in both m profile.d/both profile.d/m profile.d/zz deep/er/m old/m; do echo remote > $f; done; "
	const all = "./a:local ./both:local ./deep/er/m:remote ./deep/er/new:local ./m:remote ./old/m:remote ./profile.d/b:local ./profile.d/both:local ./profile.d/m:remote ./profile.d/z:local ./profile.d/zz:remote ./z/new:local"
	const show = `find . -type f | sort | while read f; do echo "$f:$(cat $f)"; done`
	for _, c := range []struct{ dest, from, to string }{
		{"/img", filepath.Join(dir, "etc"), "/img"}, {"/slash", filepath.Join(dir, "etc"), "/slash/"}, {"/in", filepath.Join(dir, "etc") + "/.", "/in/etc"},
	} {
		inside("d=" + c.dest + "; " + there)
		ok("", "sandbox", "cp", c.from, id+":"+c.to)
		if got := strings.Join(strings.Fields(inside("cd "+c.dest+"/etc; "+show)), " "); got != all {
			t.Errorf("up to %s: %s\nwant %s", c.to, got, all)
		}
	}
	inside("mkdir /out; d=/out; " + there)
	down := strings.NewReplacer("both:local", "both:remote").Replace(all)
	for _, c := range []struct{ dest, from, to string }{{"one", "/out/etc", "one"}, {"two", "/out/etc/.", "two/etc"}} {
		tree(c.dest+"/etc", "local\n", "a", "both", "profile.d/b", "profile.d/both", "profile.d/z", "deep/er/new", "z/new")
		ok("", "sandbox", "cp", id+":"+c.from, filepath.Join(dir, c.to))
		var got []string
		root := filepath.Join(dir, c.dest, "etc")
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			got = append(got, "."+strings.TrimPrefix(name, root)+":"+strings.TrimSpace(string(b)))
			return err
		})
		slices.Sort(got)
		if s := strings.Join(got, " "); err != nil || s != down {
			t.Errorf("down from %s: %s, %v\nwant %s", c.from, s, err, down)
		}
	}
	// A file where a directory is to be, and the other way: an error that says so, up and down, and nothing is lost.
	inside("mkdir -p /clash/etc/both /down/etc /empty/etc /link/etc; echo kept > /clash/etc/both/f; echo x > /down/etc/profile.d; echo x > /empty/etc/empty; ln -s x /link/etc/empty")
	if err := os.Mkdir(filepath.Join(dir, "one/etc/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	one := filepath.Join(dir, "one")
	for _, args := range [][]string{
		{filepath.Join(dir, "etc"), id + ":/clash"}, {id + ":/down/etc", one}, {id + ":/empty/etc", one}, {id + ":/link/etc", one},
	} {
		if _, stderr, code := dsec(t, bed.env, "", append([]string{"sandbox", "cp"}, args...)...); code == 0 || !strings.Contains(stderr, "directory") {
			t.Errorf("%q: %d %s", args, code, stderr)
		}
	}
	if got := inside("cat /clash/etc/both/f"); got != "kept\n" {
		t.Errorf("what was there is %q", got)
	}
	for _, name := range []string{"profile.d/z", "empty/."} {
		if _, err := os.Stat(one + "/etc/" + name); err != nil {
			t.Error(err)
		}
	}
}

package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
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
		{id + ":/no/such", dir}, {filepath.Join(dir, "no-such"), id + ":/x"}, {id + ":/tmp", id + ":/y"}, {dir, dir}, {"/dev/null", id + ":/null"},
	} {
		if _, stderr, code := dsec(t, bed.env, "", append([]string{"sandbox", "cp"}, args...)...); code == 0 || stderr == "" {
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

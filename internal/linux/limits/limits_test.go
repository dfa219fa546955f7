package limits

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// fakeProc makes a folder like /proc with some of the limits.
func fakeProc(t *testing.T, values map[string]string) machine {
	t.Helper()
	m := machine{t.TempDir()}
	for name, value := range values {
		path := m.path(name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(value), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func TestRaise(t *testing.T) {
	m := fakeProc(t, map[string]string{
		"kernel.pid_max":                "32768\n",
		"fs.inotify.max_user_instances": "128\n",
		"fs.inotify.max_user_watches":   "9999999\n",
		"fs.file-max":                   "9223372036854775807\n",
		"user.max_user_namespaces":      "0\n",
		"user.max_net_namespaces":       "100\n",
	})
	var said bytes.Buffer
	list, err := m.raise(slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Limit{}
	for _, l := range list {
		got[l.Name] = l
	}
	for name, want := range map[string]Limit{
		"kernel.pid_max":                {Have: 4_194_304, Was: 32_768},
		"fs.inotify.max_user_instances": {Have: 131_072, Was: 128},
		"fs.inotify.max_user_watches":   {Have: 9_999_999},
		"fs.file-max":                   {Have: 1<<63 - 1},
		"user.max_user_namespaces":      {Have: 0}, // switched off: somebody's decision
		"user.max_net_namespaces":       {Have: 16_384, Was: 100},
	} {
		l := got[name]
		file, err := os.ReadFile(m.path(name))
		if l.Have != want.Have || l.Was != want.Was || l.Why == "" || err != nil || strings.TrimSpace(string(file)) != strconv.FormatInt(want.Have, 10) {
			t.Errorf("%s: %+v, the file says %q, %v", name, l, file, err)
		}
		delete(got, name)
	}
	delete(got, NoFile)
	if len(got) > 0 {
		t.Errorf("limits that this kernel doesn't have: %v", got)
	}
	for _, want := range []string{
		"raised\" limit=kernel.pid_max from=32768 to=4194304", "raised\" limit=fs.inotify.max_user_instances from=128 to=131072",
		"zero and left so\" limit=user.max_user_namespaces",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("not said: %s in\n%s", want, &said)
		}
	}
	if strings.Contains(said.String(), "watches") {
		t.Errorf("said of a limit that is high enough:\n%s", &said)
	}
	said.Reset()
	if _, err := m.raise(slog.New(slog.NewTextHandler(&said, nil))); err != nil || strings.Contains(said.String(), "limit of the machine raised") {
		t.Errorf("raised again: %v\n%s", err, &said)
	}
}

// TestRaiseRefused: what can't be raised is told as it is, and why.
func TestRaiseRefused(t *testing.T) {
	m := fakeProc(t, map[string]string{"kernel.pid_max": "32768\n"})
	// The kernel lets nobody write some of them, in a container for example.
	path := m.path("kernel.pid_max")
	if err := errors.Join(os.Remove(path), os.Symlink("/proc/sys/kernel/random/boot_id", path)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.read(); err == nil {
		t.Error("a limit that is no number is taken for one")
	}
	if err := errors.Join(os.Remove(path), os.Symlink("/proc/sys/fs/inode-nr", path)); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	_, err := m.raise(slog.New(slog.NewTextHandler(&said, nil)))
	if err == nil {
		t.Errorf("two numbers are taken for one:\n%s", &said)
	}
}

func TestReadThisMachine(t *testing.T) {
	list, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, l := range list {
		seen[l.Name] = true
		if l.Have < 0 || l.Want <= 0 || l.Was != 0 || l.Low() != (l.Have < l.Want) {
			t.Errorf("%+v", l)
		}
	}
	for _, name := range []string{"kernel.pid_max", "kernel.threads-max", "fs.file-max", "user.max_user_namespaces", NoFile} {
		if !seen[name] {
			t.Errorf("%s isn't told", name)
		}
	}
}

// TestNoFile raises the limit of this process, as far as it is allowed to, and never lowers it.
func TestNoFile(t *testing.T) {
	m := machine{procFolder}
	before, err := noFile()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.set(NoFile, before+1); err != nil {
		// Not allowed above the hard limit: then it is at that.
		t.Logf("not raised: %v", err)
	}
	after, err := noFile()
	if err != nil || after < before {
		t.Errorf("%d, then %d, %v", before, after, err)
	}
}

package state_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsec-io/dsec/internal/state"
)

// crashEnv names the folder of a process that is to be killed while it writes.
const crashEnv = "DSEC_STATE_CRASH"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashEnv); dir != "" {
		os.Exit(writeForEver(dir))
	}
	if dir := os.Getenv(fillEnv); dir != "" {
		os.Exit(writeUntilFull(dir))
	}
	os.Exit(m.Run())
}

func open(t *testing.T, dir string) *state.Store {
	t.Helper()
	s := state.New(config(dir))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return s
}

func config(dir string) state.Config {
	return state.Config{DataDir: filepath.Join(dir, "etcd"), SocketDir: filepath.Join(dir, "run")}
}

func put(t *testing.T, s *state.Store, key, value string, conds ...state.Condition) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), state.Txn{If: conds, Put: []state.Entry{{Key: key, Value: []byte(value)}}})
	if err != nil {
		t.Fatalf("Commit(%s) = %v", key, err)
	}
	return rev
}

// TestLazy: a store that nobody needs costs nothing and leaves nothing.
func TestLazy(t *testing.T) {
	dir := t.TempDir()
	s := state.New(config(dir))
	if s.Exists() || s.Opened() {
		t.Error("a new store exists")
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("it left %v", entries)
	}
	if _, _, err := s.List(t.Context(), ""); !errors.Is(err, state.ErrClosed) {
		t.Errorf("List() of a closed store = %v", err)
	}
}

// TestTransactions: all or nothing, and the conditions decide.
func TestTransactions(t *testing.T) {
	s := open(t, t.TempDir())
	first := put(t, s, "a/1", "one", state.Condition{Key: "a/1"})
	_, err := s.Commit(t.Context(), state.Txn{If: []state.Condition{{Key: "a/1"}}, Put: []state.Entry{{Key: "a/2", Value: []byte("x")}}})
	if !errors.Is(err, state.ErrConflict) {
		t.Errorf("a condition that doesn't hold: %v", err)
	}
	put(t, s, "a/3", "three", state.Condition{Key: "a/1", Revision: first})
	put(t, s, "b/1", "other")
	list, rev, err := s.List(t.Context(), "a/")
	if err != nil || len(list) != 2 || list[0].Key != "a/1" || string(list[1].Value) != "three" || rev < list[1].Revision {
		t.Errorf("List() = %v, %d, %v", list, rev, err)
	}
	if info, err := os.Stat(filepath.Dir(s.Socket())); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the sockets' folder: %v, %v", info, err)
	}
}

// TestSockets: etcd listens on two sockets, both in the folder that only the owner enters, and on nothing else.
func TestSockets(t *testing.T) {
	before := listening(t) // a broken etcd's stay open, of another test
	s := open(t, t.TempDir())
	put(t, s, "a", "b")
	var socks []string
	for _, l := range listening(t) {
		if slices.Contains(before, l) {
			continue
		}
		if filepath.Dir(l) != filepath.Dir(s.Socket()) {
			t.Errorf("it listens on %q", l)
		}
		socks = append(socks, filepath.Base(l))
	}
	slices.Sort(socks)
	if want := []string{"c.sock", "p.sock"}; !slices.Equal(socks, want) {
		t.Errorf("it listens on %q, want %q", socks, want)
	}
}

// listening finds the sockets on which this process listens: unix ones by their name, others by their table and line.
func listening(t *testing.T) []string {
	t.Helper()
	inodes := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			inodes[strings.Trim(to, "socket:[]")] = true
		}
	}
	var found []string
	for table, at := range map[string]struct {
		inode, state int
		listens      string
	}{
		"unix": {6, 3, "00010000"}, "tcp": {9, 3, "0A"}, "tcp6": {9, 3, "0A"}, "udp": {9, 3, "07"}, "udp6": {9, 3, "07"},
	} {
		raw, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) <= at.inode || !inodes[f[at.inode]] || f[at.state] != at.listens {
				continue
			}
			if table == "unix" {
				found = append(found, strings.Join(f[at.inode+1:], " "))
			} else {
				found = append(found, table+" "+f[1])
			}
		}
	}
	return found
}

// TestManyAtOnce: of many that want the same key, one gets it; and opening happens once, whoever comes first.
func TestManyAtOnce(t *testing.T) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	won := make(chan int, 64)
	for i := range cap(won) {
		wg.Go(func() {
			_, err := s.Commit(t.Context(), state.Txn{If: []state.Condition{{Key: "k"}}, Put: []state.Entry{{Key: "k", Value: []byte("v")}}})
			switch {
			case err == nil:
				won <- i
			case !errors.Is(err, state.ErrConflict):
				t.Errorf("Commit() = %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d have won", len(won))
	}
}

// TestWatch: every change once and in order, from a revision on, also those from before the watch began.
func TestWatch(t *testing.T) {
	s := open(t, t.TempDir())
	rev := put(t, s, "w/0", "before")
	put(t, s, "w/1", "1")
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	var wg sync.WaitGroup
	var got []string
	wg.Go(func() {
		err := s.Watch(ctx, "w/", rev, func(_ int64, changes []state.Change) {
			for _, c := range changes {
				got = append(got, fmt.Sprint(c.Key, " ", string(c.Value), " ", c.Deleted))
			}
			if len(got) >= 4 {
				cancel(over)
			}
		})
		if !errors.Is(err, over) {
			t.Errorf("Watch() = %v", err)
		}
	})
	put(t, s, "x/1", "of others")
	put(t, s, "w/2", "2")
	if _, err := s.Commit(t.Context(), state.Txn{Put: []state.Entry{{Key: "w/3", Value: []byte("3")}}, Delete: []string{"w/1"}}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if want := "w/1 1 false,w/2 2 false,w/3 3 false,w/1  true"; strings.Join(got, ",") != want {
		t.Errorf("changes %q, want %s", got, want)
	}
}

// writeForEver says each key once its write was answered.
func writeForEver(dir string) int {
	s := state.New(config(dir))
	for i := 0; ; i++ {
		key := fmt.Sprintf("k/%06d", i)
		if _, err := s.Commit(context.Background(), state.Txn{Put: []state.Entry{{Key: key, Value: []byte(key)}}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(key)
	}
}

// fillEnv names the folder of a process that is to write until the disk is full.
const fillEnv = "DSEC_STATE_FILL"

// writeUntilFull says each key once its write was answered, then why no more were, and closes the store.
func writeUntilFull(dir string) int {
	s := state.New(config(dir))
	value := bytes.Repeat([]byte{'v'}, 100<<10)
	write := func(key string) error {
		_, err := s.Commit(context.Background(), state.Txn{Put: []state.Entry{{Key: key, Value: value}}})
		return err
	}
	for i := range 1000 {
		key := fmt.Sprintf("k/%06d", i)
		if err := write(key); err != nil {
			break
		}
		fmt.Println(key)
	}
	fmt.Fprintln(os.Stderr, "later:", write("k/late"))
	begun := time.Now()
	_ = s.Close() // it may say what is broken
	if took := time.Since(begun); took > 30*time.Second {
		fmt.Fprintf(os.Stderr, "Close() took %s\n", took)
		return 1
	}
	return 0
}

// TestKill: kill -9 at any moment loses no write that was answered, and the next start just works.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	for round := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		var said, failed bytes.Buffer
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = &failed
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		for said.Len() < (40+60*round)*len("k/000000\n") {
			n, err := out.Read(buf)
			said.Write(buf[:n])
			if err != nil {
				t.Fatalf("it ended: %v: %s", err, failed.String())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := out.Read(buf)
			said.Write(buf[:n])
			if err != nil {
				break
			}
		}
		_ = cmd.Wait() // it was killed
		s := state.New(config(dir))
		list, _, err := s.List(t.Context(), "k/")
		if err != nil {
			t.Fatalf("List() after kill -9 = %v", err)
		}
		there := map[string]bool{}
		for _, e := range list {
			there[e.Key] = string(e.Value) == e.Key
		}
		for key := range strings.FieldsSeq(said.String()[:strings.LastIndexByte(said.String(), '\n')]) {
			if !there[key] {
				t.Errorf("round %d: %s was answered and is lost", round, key)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
}

// TestBrokenData: where etcd can't read its data, calls fail and the process lives.
func TestBrokenData(t *testing.T) {
	dir := t.TempDir()
	s := state.New(config(dir))
	put(t, s, "a", "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(filepath.Join(dir, "etcd"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.WriteFile(path, bytes.Repeat([]byte("broken"), 4096), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cfg := config(dir)
	cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
	broken := state.New(cfg)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := broken.List(ctx, ""); err == nil {
		t.Error("a broken folder is readable")
	}
	if said.Len() == 0 {
		t.Error("the log doesn't say why")
	}
	if err := broken.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// TestLongPath: what the kernel can't take as a socket is told, and nothing is half open.
func TestLongPath(t *testing.T) {
	cfg := config(t.TempDir())
	cfg.SocketDir = filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	s := state.New(cfg)
	if _, _, err := s.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "over 100 bytes") {
		t.Errorf("List() = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

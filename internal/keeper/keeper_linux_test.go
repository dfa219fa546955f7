package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/linux/memfd"
	"github.com/dsec-io/dsec/internal/need"
	"github.com/dsec-io/dsec/internal/spawn"
)

func t0() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// The test binary is also the keeper, the shard and the shard's child.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "test-keeper":
		logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
		fmt.Fprintln(os.Stderr, Run(context.Background(), Options{EmptyDir: os.Args[2], Logger: logger}))
	case len(os.Args) == 2 && os.Args[1] == "test-shard":
		fmt.Fprintln(os.Stderr, fakeShard())
	case len(os.Args) == 2 && os.Args[1] == "test-child":
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes the pipe
		os.Exit(37)
	default:
		flag.Parse()
		os.Exit(m.Run())
	}
	os.Exit(1)
}

// told is what the fake shard answers to "items".
type told struct {
	PID   int
	Items []toldItem
	Later map[string]int32 // statuses that came after the items
}

type toldItem struct {
	Key, Blob string
	FDs       int
	Status    *int32
}

// fakeShard serves one command per connection.
func fakeShard() error {
	store, err := OpenStore(FDStore, LowFDs)
	if err != nil {
		return err
	}
	items, err := store.Items()
	if err != nil {
		return err
	}
	// mu guards later.
	var mu sync.Mutex
	later := make(map[string]int32)
	go func() {
		_ = store.Run(context.Background(), func(key string, raw int32) {
			mu.Lock()
			defer mu.Unlock()
			later[key] = raw
		})
	}()
	for {
		fd, _, err := unix.Accept4(FDListener, unix.SOCK_CLOEXEC)
		if err != nil {
			return err
		}
		s := newSocket(fd)
		m, err := s.recv(0)
		if err != nil {
			continue
		}
		reply := message{kind: kindOK}
		switch m.name {
		case "items":
			mu.Lock()
			reply.blob, _ = json.Marshal(tell(items, later))
			mu.Unlock()
		case "child":
			err = putChild(store, string(m.blob), m.fds)
		case "status":
			err = store.Status(string(m.blob), 5<<8)
		case "del":
			err = store.Del(string(m.blob))
		}
		if err != nil {
			reply.blob = []byte(err.Error())
		}
		_ = s.send(&reply, 0)
		_ = unix.Close(fd)
	}
}

func tell(items []Item, later map[string]int32) told {
	t := told{PID: os.Getpid(), Later: later}
	for _, it := range items {
		t.Items = append(t.Items, toldItem{it.Key, string(it.Blob), len(it.FDs), it.Status})
	}
	return t
}

// putChild starts a child that waits for the end of its stdin, and puts it.
func putChild(store *Store, key string, fds []int) error {
	var s spawn.Script
	s.Call(unix.SYS_DUP3, uintptr(fds[0]), 0, 0)
	s.Call(unix.SYS_EXECVEAT, FDCgroupV2, s.String(""), s.Strings([][]byte{[]byte("test"), []byte("test-child")}), s.Strings(nil), unix.AT_EMPTY_PATH)
	out, err := spawn.Run(spawn.Attr{Cgroup: -1}, &s)
	if err != nil {
		return err
	}
	if out.Failed != nil {
		return out.Failed
	}
	closeAll(fds)
	pidfd, err := unix.PidfdOpen(out.PID, unix.PIDFD_NONBLOCK) // as a shard opens them
	if err != nil {
		return err
	}
	return store.Put(Item{Key: key, Blob: []byte("blob of " + key), FDs: []int{0, pidfd}, Wait: 1})
}

// fixture is a keeper with one fake shard.
type fixture struct {
	*testing.T

	dir    string
	client *Client
	spec   ShardSpec
	prog   int
}

const testUID = 0x3e000001

func newFixture(t *testing.T) *fixture {
	t.Helper()
	need.Root(t)
	dir, err := os.MkdirTemp("/tmp", "k") // short, for the sockets
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, dir: dir}
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if f.prog, err = memfd.Sealed("keeper-test", program, 0o555); err != nil {
		t.Fatal(err)
	}
	f.startKeeper()
	listener, err := listen(filepath.Join(dir, "s.sock"))
	if err != nil {
		t.Fatal(err)
	}
	f.spec = ShardSpec{
		Name: "s", Argv: []string{"test", "test-shard"}, UID: testUID, Listener: listener, Log: 2, Program: f.prog, SelfDir: -1,
		CgroupV2: f.prog, CgroupMemory: -1, CgroupCPU: -1, CgroupPIDs: -1,
	}
	t.Cleanup(func() {
		f.stop()
		_ = unix.Close(listener)
		_ = unix.Close(f.prog)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) startKeeper() {
	f.Helper()
	empty := filepath.Join(f.dir, "empty")
	var err error
	f.client, err = Start(f.Context(), Config{
		Socket: filepath.Join(f.dir, "k.sock"), EmptyDir: empty, Program: f.prog, Log: 2, CgroupDir: -1,
		Argv: []string{"test", "test-keeper", empty},
	})
	if err != nil {
		f.Fatal(err)
	}
}

// stop ends the shards, then the keeper.
func (f *fixture) stop() {
	list, err := f.client.List()
	if err != nil {
		f.Error(err)
	}
	for _, sh := range list {
		if err := f.client.Stop(sh.Name); err != nil {
			f.Error(err)
		}
		if pidExists(sh.PID) {
			f.Errorf("shard %d lives after Stop", sh.PID)
		}
	}
	f.killKeeper()
}

func (f *fixture) killKeeper() {
	f.Helper()
	fd, err := unix.PidfdOpen(f.client.PID(), 0)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		f.Fatal(err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 5000); n != 1 || err != nil {
		f.Fatalf("the keeper doesn't end: %v", err)
	}
	_ = f.client.Close()
}

func pidExists(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

// ask sends one command to the fake shard.
func (f *fixture) ask(name, arg string, fds ...int) []byte {
	f.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(f.dir, "s.sock")}); err != nil {
		f.Fatal(err)
	}
	s := newSocket(fd)
	if err := s.send(&message{kind: kindPut, name: name, blob: []byte(arg), fds: fds}, 0); err != nil {
		f.Fatal(err)
	}
	m, err := s.recv(0)
	if err != nil {
		f.Fatalf("ask %s: %v", name, err)
	}
	return m.blob
}

func (f *fixture) items() (t told) {
	f.Helper()
	if err := json.Unmarshal(f.ask("items", ""), &t); err != nil {
		f.Fatal(err)
	}
	return t
}

// child makes the shard put a child and returns what ends it.
func (f *fixture) child(key string) *os.File {
	f.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		f.Fatal(err)
	}
	defer r.Close()
	if got := f.ask("child", key, int(r.Fd())); len(got) != 0 {
		f.Fatalf("child: %s", got)
	}
	return w
}

func (f *fixture) start() Shard {
	f.Helper()
	sh, err := f.client.Start(&f.spec)
	if err != nil {
		f.Fatal(err)
	}
	return sh
}

func (f *fixture) eventually(what string, cond func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeoutCause(f.Context(), time.Minute, errors.New(what))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			f.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func (f *fixture) restarted(old Shard) Shard {
	f.Helper()
	var now Shard
	f.eventually("the restart", func() bool {
		list, err := f.client.List()
		if err != nil || len(list) != 1 {
			f.Fatalf("List() = %+v, %v", list, err)
		}
		now = list[0]
		return now.PID != 0 && now.PID != old.PID
	})
	return now
}

func TestShardIsWhatItShouldBe(t *testing.T) {
	f := newFixture(t)
	sh := f.start()
	if sh.PID <= 0 || sh.StartTime == 0 || f.items().PID != sh.PID {
		t.Fatalf("Start() = %+v", sh)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", sh.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", testUID, testUID, testUID, testUID), fmt.Sprintf("Gid:\t%d\t", testUID), "Groups:\t \n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapInh:\t0000000000000000\n",
	} {
		if !strings.Contains(string(status), want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", sh.PID))
	if err != nil || len(root) != 0 {
		t.Errorf("root holds %v, %v", root, err)
	}
	for _, ns := range []string{"mnt", "net", "ipc", "uts"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", sh.PID, ns))
		if err != nil || own == its {
			t.Errorf("namespace %s is %s, as here; %v", ns, its, err)
		}
	}
	for fd := range LowFDs {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", sh.PID, fd)); err != nil {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
	if _, err := f.client.Start(&f.spec); !errors.Is(err, ErrRefused) {
		t.Errorf("second Start() = %v", err)
	}
	if err := f.client.Stop("s"); err != nil {
		t.Error(err)
	}
	if err := f.client.Stop("s"); err != nil {
		t.Errorf("second Stop() = %v", err)
	}
	if list, err := f.client.List(); err != nil || len(list) != 0 {
		t.Errorf("List() = %+v, %v", list, err)
	}
}

func TestDeadShardIsRestartedWithItsItems(t *testing.T) {
	f := newFixture(t)
	sh := f.start()
	events := make(chan Event, 16)
	ready := make(chan struct{})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		done <- f.client.Watch(ctx, func() { close(ready) }, func(e Event) { events <- e })
	}()
	<-ready
	running, early, late := f.child("running"), f.child("early"), f.child("late")
	defer running.Close()
	f.ask("status", "early") // the shard's own word counts, whatever the kernel says later
	f.child("gone").Close()
	f.ask("del", "gone")
	if err := unix.Kill(sh.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again := f.restarted(sh)
	got := f.items()
	keys := make([]string, len(got.Items))
	for i, it := range got.Items {
		keys[i] = it.Key
		if it.Blob != "blob of "+it.Key || it.FDs != 2 {
			t.Errorf("item %+v", it)
		}
	}
	if !slices.Equal(keys, []string{"early", "late", "running"}) || got.PID != again.PID {
		t.Fatalf("items %q of %d", keys, got.PID)
	}
	if s := got.Items[0].Status; s == nil || *s != 5<<8 {
		t.Errorf("told status %v", s)
	}
	// A child that ends under the keeper, with a shard there.
	late.Close()
	f.eventually("the late status", func() bool { return f.items().Later["late"] == 37<<8 })
	// One that ends with no shard there to be told.
	if err := unix.Kill(again.PID, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	running.Close()
	if err := unix.Kill(again.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.restarted(again)
	f.eventually("the status of the last", func() bool {
		got := f.items()
		for _, it := range got.Items {
			if it.Key == "running" && it.Status != nil {
				return *it.Status == 37<<8
			}
		}
		return got.Later["running"] == 37<<8
	})
	early.Close()
	for _, want := range []EventType{EventDied, EventRestarted, EventDied, EventRestarted} {
		if e := <-events; e.Type != want || e.Name != "s" || e.PID == 0 {
			t.Errorf("event %+v, want type %d", e, want)
		}
	}
	cancel(errors.New("enough"))
	if err := <-done; err == nil || err.Error() != "enough" {
		t.Errorf("Watch() = %v", err)
	}
}

func TestShardIsAdoptedByANewKeeper(t *testing.T) {
	f := newFixture(t)
	sh := f.start()
	watched := make(chan error, 1)
	ready := make(chan struct{})
	go func() { watched <- f.client.Watch(t.Context(), func() { close(ready) }, func(Event) {}) }()
	<-ready
	f.killKeeper()
	if err := <-watched; err == nil {
		t.Error("Watch() doesn't tell of the keeper's death")
	}
	if !pidExists(sh.PID) {
		t.Fatal("the shard died with its keeper")
	}
	f.startKeeper()
	pidfd, err := unix.PidfdOpen(sh.PID, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]int{pidfd, pair[0]})
	got, err := f.client.Adopt(&f.spec, pidfd, pair[0])
	if err != nil || got != sh {
		t.Fatalf("Adopt() = %+v, %v; want %+v", got, err, sh)
	}
	// What a shard would do with the other end.
	store, err := OpenStore(pair[1], 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(Item{Key: "k", Blob: []byte("b"), FDs: []int{2}, Wait: NoWait}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(sh.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.restarted(sh)
	if items := f.items().Items; len(items) != 1 || items[0].Key != "k" || items[0].FDs != 1 {
		t.Errorf("items %+v", items)
	}
}

func TestBadShardsAreRefused(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]func(*ShardSpec){
		"root":        func(s *ShardSpec) { s.UID = 0 },
		"no-name":     func(s *ShardSpec) { s.Name = "" },
		"no-listener": func(s *ShardSpec) { s.Listener = -1 },
		"no-program":  func(s *ShardSpec) { s.Program = -1 },
		"not-exec":    func(s *ShardSpec) { s.Program = s.Log },
	} {
		t.Run(name, func(t *testing.T) {
			spec := f.spec
			change(&spec)
			if _, err := f.client.Start(&spec); !errors.Is(err, ErrRefused) {
				t.Errorf("Start() = %v", err)
			}
		})
	}
	f.start() // the connection is still good
}

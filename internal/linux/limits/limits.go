// Package limits knows the numbers by which a kernel bounds a whole machine, and which thousands of sandboxes would meet
// long before its memory is full: how many processes can be numbered, how many terminals there can be, and the like.
//
// [Read] tells them; [Raise] lifts those that are too low. A limit is never lowered, and not put back either: others on
// the machine may have come to need it, so that it stays until the machine starts again. What somebody has set to zero to
// switch it off ([Limit.Off]) is left alone. Nothing here changes what one sandbox may use: that is bounded by its own
// cgroup, user namespace and resource limits.
package limits

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const procFolder = "/proc"

// NoFile is the name of the limit of open files of this process and of what it starts.
const NoFile = "RLIMIT_NOFILE"

// Limit is one of them.
type Limit struct {
	Name string `json:"name"`
	Have int64  `json:"have"`
	Want int64  `json:"want"`          // enough for 10,000 sandboxes
	Was  int64  `json:"was,omitempty"` // before this process has raised it; 0: it hasn't
	Why  string `json:"why"`           // what is bounded
}

// Low tells whether there is less than wanted.
func (l Limit) Low() bool { return l.Have < l.Want }

// Off tells whether the limit is zero where that is somebody's decision: no unprivileged namespaces.
func (l Limit) Off() bool { return l.Have == 0 && strings.HasPrefix(l.Name, "user.") }

// wanted are the limits of the machine.
//
// An owner is the uid of a shard: to the kernel up to 128 sandboxes are one user, with what each may have on its own
// (see the container backend's limits of user namespaces).
func wanted() []Limit {
	return []Limit{
		{Name: "kernel.pid_max", Want: 4_194_304, Why: "numbers of processes and threads"},
		{Name: "kernel.threads-max", Want: 131_072, Why: "processes and threads of the machine"},
		{Name: "kernel.pty.max", Want: 1 << 20, Why: "terminals of the machine"},
		{Name: "fs.file-max", Want: 1 << 20, Why: "open files of the machine"},
		{Name: "fs.nr_open", Want: 1 << 20, Why: "open files that a process can be allowed"},
		{Name: NoFile, Want: 1 << 20, Why: "open files of the edge, of a keeper and of a shard"},
		{Name: "fs.mount-max", Want: 100_000, Why: "mounts of a mount namespace"},
		{Name: "fs.aio-max-nr", Want: 1 << 20, Why: "asynchronous I/O requests of the machine"},
		{Name: "fs.inotify.max_user_instances", Want: 131_072, Why: "inotify instances of an owner"},
		{Name: "fs.inotify.max_user_watches", Want: 1 << 20, Why: "inotify watches of an owner"},
		{Name: "fs.inotify.max_queued_events", Want: 65_536, Why: "events that wait in an inotify instance"},
		{Name: "vm.max_map_count", Want: 262_144, Why: "mappings of a process, for programs like Elasticsearch"},
		{Name: "user.max_user_namespaces", Want: 16_384, Why: "user namespaces of an owner"},
		{Name: "user.max_pid_namespaces", Want: 16_384, Why: "pid namespaces of an owner"},
		{Name: "user.max_net_namespaces", Want: 16_384, Why: "network namespaces of an owner"},
		{Name: "user.max_mnt_namespaces", Want: 16_384, Why: "mount namespaces of an owner"},
		{Name: "user.max_ipc_namespaces", Want: 16_384, Why: "IPC namespaces of an owner"},
		{Name: "user.max_uts_namespaces", Want: 16_384, Why: "UTS namespaces of an owner"},
		{Name: "user.max_cgroup_namespaces", Want: 16_384, Why: "cgroup namespaces of an owner"},
		{Name: "user.max_time_namespaces", Want: 16_384, Why: "time namespaces of an owner"},
	}
}

// Read tells the limits. What this kernel doesn't have is left out.
func Read() ([]Limit, error) { return machine{procFolder}.read() }

// Raise lifts what is too low and tells the limits as they are then. What can't be raised is logged and left.
func Raise(log *slog.Logger) ([]Limit, error) { return machine{procFolder}.raise(log) }

// machine is where limits are; tests have another.
type machine struct{ proc string }

func (m machine) path(name string) string {
	return filepath.Join(m.proc, "sys", strings.ReplaceAll(name, ".", "/"))
}

func (m machine) get(name string) (int64, error) {
	if name == NoFile {
		return noFile()
	}
	raw, err := os.ReadFile(m.path(name))
	if err != nil {
		return 0, fmt.Errorf("limit %s: %w", name, err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if errors.Is(err, strconv.ErrRange) { // fs.file-max may be all ones
		return n, nil
	}
	if err != nil {
		return 0, fmt.Errorf("limit %s: %w", name, err)
	}
	return n, nil
}

func (m machine) set(name string, value int64) error {
	if name == NoFile {
		return setNoFile(value)
	}
	return os.WriteFile(m.path(name), []byte(strconv.FormatInt(value, 10)), 0o600)
}

func (m machine) read() ([]Limit, error) {
	var list []Limit
	for _, l := range wanted() {
		var err error
		l.Have, err = m.get(l.Name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, l)
	}
	return list, nil
}

func (m machine) raise(log *slog.Logger) ([]Limit, error) {
	list, err := m.read()
	if err != nil {
		return nil, err
	}
	for i := range list {
		l := &list[i]
		if !l.Low() {
			continue
		}
		what := []any{slog.String("limit", l.Name), slog.Int64("from", l.Have), slog.Int64("to", l.Want), slog.String("of", l.Why)}
		if l.Off() {
			log.Warn("limit of the machine is zero and left so", what...)
			continue
		}
		err := m.set(l.Name, l.Want)
		was := l.Have
		// Another instance may have been quicker, and the kernel may have given less than it was asked for.
		if now, gerr := m.get(l.Name); gerr == nil {
			l.Have = now
		}
		if l.Have > was {
			l.Was = was
		}
		if l.Low() {
			log.Warn("limit of the machine not raised", append(what, slog.Any("err", err))...)
			continue
		}
		log.Info("limit of the machine raised", what...)
	}
	return list, nil
}

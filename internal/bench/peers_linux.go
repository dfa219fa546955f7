package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/internal/linux/caps"
)

// peerRange is where the ids of the peers' user namespaces begin: below those that DSec gives out.
const peerRange = 0x20000000

// ociRuntime is a peer whose containers stay until they are deleted.
type ociRuntime struct {
	name   string
	state  string // its folder for state
	bundle string
	log    *os.File
	env    []string
	place  *place
	ids    atomic.Int64

	retries atomic.Int64 // of first commands
}

func (b *bench) runtime(name string) (*ociRuntime, error) {
	r := &ociRuntime{name: name, state: filepath.Join(b.work, name), bundle: filepath.Join(b.work, name+"-bundle"), env: b.Env, place: b.place}
	for _, dir := range []string{r.state, r.bundle} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	raw, err := json.Marshal(bundleConfig(b.place.root))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.bundle, "config.json"), raw, 0o600); err != nil {
		return nil, err
	}
	r.log, err = os.OpenFile(filepath.Join(b.work, name+".log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	return r, err
}

func (r *ociRuntime) close() { r.log.Close() }

// bundleConfig asks for what DSec's sandboxes have: all namespaces with a user namespace, the usual capabilities, the
// same limits. A seccomp filter isn't asked for and the root is read-only, both to the peer's advantage.
func bundleConfig(root string) map[string]any {
	var namespaces []map[string]string
	for _, ns := range []string{"pid", "mount", "network", "ipc", "uts", "cgroup", "user"} {
		namespaces = append(namespaces, map[string]string{"type": ns})
	}
	var names []string
	for _, c := range caps.Default() {
		names = append(names, c.String())
	}
	capabilities := map[string][]string{}
	for _, set := range []string{"bounding", "effective", "permitted"} {
		capabilities[set] = names
	}
	mapping := []map[string]int{{"containerID": 0, "hostID": peerRange, "size": 65536}}
	return map[string]any{
		"ociVersion": "1.0.2",
		"process": map[string]any{
			"user": map[string]int{"uid": 0, "gid": 0}, "args": []string{tinyPause}, "env": []string{"PATH=/bin"}, "cwd": "/",
			"capabilities": capabilities,
		},
		"root": map[string]any{"path": root, "readonly": true}, "hostname": "sandbox",
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=65536k"}},
			{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		"linux": map[string]any{
			"namespaces": namespaces, "uidMappings": mapping, "gidMappings": mapping,
			"resources": map[string]any{
				"memory": map[string]int{"limit": limitMemoryMB << 20},
				"cpu":    map[string]int{"quota": limitCPU * 100_000, "period": 100_000},
				"pids":   map[string]int{"limit": limitPIDs},
			},
		},
	}
}

// run runs the peer's program once, also when ctx ends meanwhile: one that is killed leaves half a container. What it
// prints goes to a file: a container that it leaves behind holds it, too.
func (r *ociRuntime) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), r.name, append([]string{"--root", r.state}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Env = r.log, r.log, r.env
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", r.name, args[0], err, lastLine(r.log))
	}
	return nil
}

func lastLine(f *os.File) []byte {
	b, err := os.ReadFile(f.Name())
	if err != nil {
		return nil
	}
	b = bytes.TrimSpace(b)
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

func (r *ociRuntime) id() string { return fmt.Sprintf("dsecbench-%d-%d", os.Getpid(), r.ids.Add(1)) }

func (r *ociRuntime) create(ctx context.Context, id string) error {
	err := r.run(ctx, "create", "--bundle", r.bundle, id)
	if err == nil {
		err = r.run(ctx, "start", id)
	}
	return err
}

func (r *ociRuntime) remove(ctx context.Context, id string) error {
	err := r.run(ctx, "kill", id, "KILL")
	return errors.Join(err, r.run(ctx, "delete", "--force", id))
}

// A container's first command is tried so often, after such a pause.
const (
	firstTries = 100
	firstPause = time.Millisecond
)

// firstExec runs the first command of a container. crun answers a start before init has exec'd, and until then its own
// exec may be refused; a user would try again, so that counts as time and not as a failure.
func (r *ociRuntime) firstExec(ctx context.Context, id string) error {
	for try := 1; ; try++ {
		err := r.run(ctx, "exec", id, tinyTrue)
		if err == nil || try == firstTries {
			return err
		}
		r.retries.Add(1)
		time.Sleep(firstPause)
	}
}

// life does the steps of a sandbox's life with a container.
func (r *ociRuntime) life(ctx context.Context, l *laps) error {
	id := r.id()
	err := r.create(ctx, id)
	l.lap(stepCreate)
	if err == nil {
		err = r.firstExec(ctx, id)
	}
	l.lap(stepExec)
	if e := r.remove(context.WithoutCancel(ctx), id); err == nil {
		err = e
	}
	l.lap(stepStop)
	l.sum()
	return err
}

// bubblewrap has no container that stays: its one program is the whole life.
func (b *bench) bubblewrap(ctx context.Context, l *laps) error {
	cmd := exec.CommandContext(ctx, "bwrap", "--unshare-all", "--unshare-user", "--uid", "0", "--gid", "0", "--hostname", "sandbox",
		"--ro-bind", b.place.root, "/", "--proc", "/proc", "--dev", "/dev", tinyTrue)
	cmd.Env = b.Env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("bwrap: %w: %s", err, bytes.TrimSpace(out))
	}
	l.lap(stepLife)
	return nil
}

// lives are the peers' contenders of the create benchmark.
func (b *bench) lives() (all []*contender, closeAll func(), err error) {
	var open []*ociRuntime
	closeAll = func() {
		for _, r := range open {
			if n := r.retries.Load(); n > 0 {
				b.notef("%s refused %d first commands just after its start; they were tried again, on its time", r.name, n)
			}
			r.close()
		}
	}
	for _, name := range b.Peers {
		c := &contender{name: name, peer: true, thread: b.place.enter, do: b.bubblewrap}
		if name != "bwrap" {
			r, err := b.runtime(name)
			if err != nil {
				return nil, closeAll, err
			}
			open = append(open, r)
			c.do = r.life
		}
		all = append(all, c)
	}
	return all, closeAll, nil
}

package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/linux/memfd"
	"github.com/dsec-io/dsec/internal/linux/pidfd"
	"github.com/dsec-io/dsec/internal/spawn"
)

// probeImage is a file system with one file, probe, made by
//
//	mkfs.erofs -T0 -U 00000000-0000-0000-0000-000000000001 --all-root -x-1 probe.erofs src
//
//go:embed probe.erofs.gz
var probeImage []byte

// DefaultImageStore is the machine-wide image store.
const DefaultImageStore = "/var/lib/dsec/images"

// machine is what probes share while they run.
type machine struct {
	opts  Options
	noDir error  // why dir is empty
	dir   string // a folder of this run's own, on the data folder's file system; empty when there can't be one
	tmp   string // another one, for files of the probes
	init  int    // a sealed program that only sleeps; -1 when there's none
}

// probe is one thing to try. Try tells what it found, and an error when it's missing; a *limitedError when it's there in
// part.
type probe struct {
	name     string
	required bool
	fix      string
	try      func(context.Context, *machine) (found string, err error)
}

// limitedError says that something is there in part.
type limitedError struct{ fix string }

func (e *limitedError) Error() string { return "limited" }

// Run tries everything.
func Run(ctx context.Context, o Options) Report {
	if o.ImageStore == "" {
		o.ImageStore = DefaultImageStore
	}
	m := &machine{opts: o, init: -1}
	r := Report{OK: true, Kernel: kernel()}
	cleanup, err := m.prepare()
	for _, p := range probes() {
		r.add(p.run(ctx, m))
	}
	if err == nil {
		err = cleanup()
	}
	if err != nil {
		r.add(Check{Name: "clean-up", Status: Degraded, Found: err.Error()})
	}
	return r
}

func (r *Report) add(c Check) {
	r.Checks = append(r.Checks, c)
	if c.Required && c.Status == Missing {
		r.OK = false
	}
}

func (p *probe) run(ctx context.Context, m *machine) Check {
	found, err := p.try(ctx, m)
	c := Check{Name: p.name, Status: OK, Required: p.required, Found: found}
	limited, ok := errors.AsType[*limitedError](err)
	switch {
	case ok:
		c.Status, c.Fix = Degraded, limited.fix
	case err != nil:
		c.Status, c.Found, c.Fix = Missing, err.Error(), p.fix
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			c.Fix = "sudo dsec doctor"
		}
	}
	return c
}

// prepare makes what several probes need. What can't be made shows in the probes.
func (m *machine) prepare() (cleanup func() error, err error) {
	if m.tmp, err = os.MkdirTemp("", "dsec-doctor-*"); err != nil {
		return nil, fmt.Errorf("make a folder to try things in: %w", err)
	}
	// That it can't be made there is for the data folder's own probe to say.
	m.dir, m.noDir = os.MkdirTemp(existingParent(m.opts.DataDir), ".dsec-doctor-*")
	if program, err := spawn.TinyInit(runtime.GOARCH); err == nil {
		if fd, err := memfd.Sealed("dsec-doctor", program, 0o555); err == nil {
			m.init = fd
		}
	}
	return func() error {
		if m.init >= 0 {
			unix.Close(m.init)
		}
		if m.dir != "" {
			err = os.RemoveAll(m.dir)
		}
		return errors.Join(err, os.RemoveAll(m.tmp))
	}, nil
}

// image writes the probe image to a file.
func (m *machine) image() (string, error) {
	if m.tmp == "" {
		return "", errors.New("no folder for temporary files")
	}
	path := m.tmp + "/probe.erofs"
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(probeImage))
	if err != nil {
		return "", fmt.Errorf("unpack the probe image: %w", err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		return "", fmt.Errorf("unpack the probe image: %w", err)
	}
	return path, os.WriteFile(path, b, 0o600)
}

// child is a process that only sleeps.
type child struct {
	pid   int
	pidfd int
}

// child starts one with these clone flags, in this cgroup (-1: our own), after the steps that prepare adds.
func (m *machine) child(flags uint64, cgroup int, prepare ...func(*spawn.Script)) (*child, error) {
	if m.init < 0 {
		return nil, errors.New("no program to run: see memfd-sealing")
	}
	var s spawn.Script
	for _, step := range prepare {
		step(&s)
	}
	none := s.Strings(nil)
	s.Call(unix.SYS_EXECVEAT, uintptr(m.init), s.String(""), s.Strings([][]byte{[]byte("dsec-doctor")}), none, unix.AT_EMPTY_PATH).As("exec")
	out, err := spawn.Run(spawn.Attr{Flags: flags, Cgroup: cgroup, Watch: new(spawn.Watch)}, &s)
	if err != nil {
		return nil, err
	}
	if out.Failed != nil {
		_, err := spawn.Wait(out.PID)
		return nil, errors.Join(out.Failed, err)
	}
	fd, err := pidfd.Open(out.PID)
	if err != nil {
		return nil, errors.Join(err, unix.Kill(out.PID, unix.SIGKILL), reaped(out.PID))
	}
	return &child{pid: out.PID, pidfd: fd}, nil
}

// end kills the child and takes its status.
func (c *child) end() error {
	err := pidfd.Kill(c.pidfd)
	return errors.Join(err, reaped(c.pid), unix.Close(c.pidfd))
}

func reaped(pid int) error {
	_, err := spawn.Wait(pid)
	return err
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
}

// existingParent is the folder that path is in, or would be: the data folder needn't exist yet.
func existingParent(path string) string {
	for path != "" && path != "/" && path != "." {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		path = parent(path)
	}
	if path == "" {
		return os.TempDir()
	}
	return path
}

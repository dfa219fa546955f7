package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/doctor"
	"github.com/dsec-io/dsec/internal/leakcheck"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
	"github.com/dsec-io/dsec/internal/need"
)

// program is dsec as a process of its own.
func program(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(slices.Clone(env), asProgram+"=1")
	return cmd
}

// devProgram is a `dsec dev` that can be killed, on a data folder and an id range file of the test's own.
type devProgram struct {
	t        *testing.T
	data     string
	idRanges string
	env      []string // of its clients
	cmd      *exec.Cmd
	log      *bytes.Buffer
	instance string
}

func startDev(t *testing.T, data, idRanges string) *devProgram {
	t.Helper()
	need.Root(t)
	need.Image(t, "busybox")
	d := &devProgram{t: t, data: data, idRanges: idRanges}
	d.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if d.cmd != nil {
			d.kill()
		}
		if err := cgroup.RemoveAll(ctx, d.instance); err != nil {
			t.Error(err)
		}
		left, err := leakcheck.Wait(ctx, leakcheck.Snapshot{}, func() (leakcheck.Snapshot, error) {
			s, err := leakcheck.Take()
			return s.Only(d.instance), err
		})
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %q, %v", left, err)
		}
	})
	return d
}

func (d *devProgram) start() {
	d.t.Helper()
	d.env = []string{"HOME=" + d.t.TempDir(), "DSEC_CONTEXT=" + filepath.Join(d.data, "context.json")}
	d.cmd = program(d.t, d.env, "dev", "--data", d.data, "--listen", "127.0.0.1:0", "--id-ranges", d.idRanges, "--no-context", "--pool", "1")
	d.log = new(bytes.Buffer)
	d.cmd.Stderr = d.log
	out, err := d.cmd.StdoutPipe()
	if err == nil {
		err = d.cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, "ready http://") {
		d.kill()
		d.t.Fatalf("dsec dev says %q, %v, log:\n%s", line, err, d.log)
	}
	id, err := os.ReadFile(filepath.Join(d.data, "instance"))
	if err != nil {
		d.t.Error(err)
	}
	d.instance = strings.TrimSpace(string(id))
}

// kill ends the server as a crash does: its sandboxes go on.
func (d *devProgram) kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Error(err)
	}
	_ = d.cmd.Wait() // that it was killed
	d.cmd = nil
}

func (d *devProgram) create() string {
	d.t.Helper()
	id, stderr, code := dsec(d.t, d.env, "", "sandbox", "create", "busybox")
	if code != 0 {
		d.t.Fatalf("create: %s", stderr)
	}
	return strings.TrimSpace(id)
}

// alive is how many processes of the instance there are.
func (d *devProgram) alive() int {
	d.t.Helper()
	all, err := cgroup.Instances()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, g := range all {
		if g.Instance == d.instance {
			return g.Processes
		}
	}
	return 0
}

// advice is what the doctor says of leftovers.
func (d *devProgram) advice() doctor.Check {
	d.t.Helper()
	out, stderr, _ := dsec(d.t, d.env, "", "doctor", "--json", "--data", d.data, "--id-ranges", d.idRanges)
	var r doctor.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		d.t.Fatalf("doctor --json: %v, %q, %s", err, out, stderr)
	}
	i := slices.IndexFunc(r.Checks, func(c doctor.Check) bool { return c.Name == "leftovers" })
	if i < 0 {
		d.t.Fatal("the doctor says nothing of leftovers")
	}
	return r.Checks[i]
}

// TestDoctorCleansUpAfterAKilledServer follows the advice to the letter, beside an instance that lives.
func TestDoctorCleansUpAfterAKilledServer(t *testing.T) {
	dir := t.TempDir()
	ids := filepath.Join(dir, "ids.json")
	other := startDev(t, filepath.Join(dir, "other"), ids)
	otherID := other.create()
	d := startDev(t, filepath.Join(dir, "data"), ids)
	d.create()
	clean := func(args ...string) string {
		t.Helper()
		out, stderr, code := dsec(t, d.env, "", args...)
		if code != 0 {
			t.Fatalf("%q: %d %s", args, code, stderr)
		}
		return out
	}
	if c := d.advice(); c.Status != doctor.OK {
		t.Errorf("while both are served: %+v", c)
	}
	d.kill()
	c := d.advice()
	if c.Status != doctor.Degraded || !strings.Contains(c.Found, d.instance) || !strings.Contains(c.Fix, "dsec dev --data "+d.data) {
		t.Errorf("after a crash: %+v", c)
	}
	if out := clean("doctor", "--clean", "--id-ranges", ids); out != "" || d.alive() == 0 {
		t.Errorf("--clean took sandboxes that a server would take over: %q", out)
	}
	command, _, _ := strings.Cut(c.Fix, " #")
	if out := clean(strings.Fields(command)[1:]...); !strings.HasPrefix(out, "removed instance "+d.instance) || d.alive() != 0 {
		t.Errorf("%s: %q, %d processes are left", command, out, d.alive())
	}
	if c := d.advice(); c.Status != doctor.OK {
		t.Errorf("after the removal: %+v", c)
	}
	// The folder serves again. Then it is removed under a crashed server: nothing can take over what goes on.
	d.start()
	d.create()
	d.kill()
	if err := os.RemoveAll(d.data); err != nil {
		t.Fatal(err)
	}
	c = d.advice()
	if out := clean(strings.Fields(c.Fix)[1:]...); !strings.HasPrefix(out, "removed instance "+d.instance) || d.alive() != 0 {
		t.Errorf("%s: %q, %d processes are left", c.Fix, out, d.alive())
	}
	if claims, err := os.ReadFile(ids); err != nil || strings.Contains(string(claims), d.instance) || !strings.Contains(string(claims), other.instance) {
		t.Errorf("claims after the removal: %s, %v", claims, err)
	}
	// A server whose folder was moved lives, whatever its name says.
	if err := os.Rename(other.data, other.data+"-moved"); err != nil {
		t.Fatal(err)
	}
	if out := clean("doctor", "--clean", "--kept", "--id-ranges", ids); out != "" {
		t.Errorf("an instance that is served was cleaned: %q", out)
	}
	if err := os.Rename(other.data+"-moved", other.data); err != nil {
		t.Fatal(err)
	}
	if out, stderr, code := dsec(t, other.env, "", "sandbox", "exec", otherID, "--", "echo", "here"); out != "here\n" {
		t.Errorf("the other instance's sandbox: %q, %q, %d", out, stderr, code)
	}
}

// TestIDRangesAloneAreNoLeftover: what has ended in order and whose folder is gone has a line among the id ranges, which a
// later server takes back.
func TestIDRangesAloneAreNoLeftover(t *testing.T) {
	dir := t.TempDir()
	ended := startDev(t, filepath.Join(dir, "ended"), filepath.Join(dir, "ids.json"))
	ended.create()
	if err := ended.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ended.cmd.Wait(), os.RemoveAll(ended.data)); err != nil {
		t.Fatal(err)
	}
	ended.cmd = nil
	if c := ended.advice(); c.Status != doctor.OK || !strings.HasPrefix(c.Found, "nothing") {
		t.Errorf("after an orderly end: %+v", c)
	}
}

// TestClosedPipesMakeNoNoise: a reader that has had enough, as in `| head -1`.
func TestClosedPipesMakeNoNoise(t *testing.T) {
	f := newFake(t)
	f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning}}
	for _, line := range []string{"sandbox ls", "sandbox get s1 -o json", "completion bash", "help", "version", "config contexts"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		var stderr strings.Builder
		cmd := program(t, f.env(), strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = w, &stderr
		err = cmd.Run()
		w.Close()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if stderr.String() != "" || !ok || !status.Signaled() || status.Signal() != syscall.SIGPIPE {
			t.Errorf("dsec %s, with nobody to read: %v, %q", line, err, stderr.String())
		}
	}
}

// TestCompletionInABareBash: the script completes in a bash that has nothing but itself, also words with a colon.
func TestCompletionInABareBash(t *testing.T) {
	f := newFake(t)
	f.list = []api.Sandbox{{ID: "s1", State: api.StateRunning, Spec: api.Spec{Image: "busybox"}}}
	dir := t.TempDir()
	script, _, code := f.dsec("", "completion", "bash")
	self := program(t, nil)
	wrapper := "#!/bin/sh\nexec env " + strings.Join(self.Env, " ") + " " + self.Path + " \"$@\"\n"
	err := errors.Join(os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600), os.WriteFile(filepath.Join(dir, "dsec"), []byte(wrapper), 0o700))
	if err != nil || code != 0 {
		t.Fatalf("%v, %d", err, code)
	}
	for line, want := range map[string]string{
		"dsec sandbox exec ":      "s1",
		"dsec sandbox cp s":       "s1:",
		"dsec --endpoint=a:1 ver": "version",
	} {
		bash := exec.CommandContext(t.Context(), "bash", "--norc", "-c", `compopt() { :; }; source "$0"/script; COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=(wrong) COMP_CWORD=0; __start_dsec; printf %s "${COMPREPLY[*]}"`, dir, line)
		bash.Env = append(f.env(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := bash.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%q: %q, %v, want %q", line, out, err, want)
		}
	}
}

// TestCompletionNeverHangs: not by a server that takes a connection and says nothing, nor by odd settings.
func TestCompletionNeverHangs(t *testing.T) {
	var lc net.ListenConfig
	silent, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	home := "HOME=" + dir
	for name, env := range map[string][]string{
		"silent-server": {home, "DSEC_ENDPOINT=http://" + silent.Addr().String(), "DSEC_TOKEN=t"},
		"no-server":     {home, "DSEC_ENDPOINT=http://127.0.0.1:1", "DSEC_TOKEN=t"},
		"no-settings":   {home},
		"device":        {home, "DSEC_CONTEXT=/dev/zero"},
		"fifo":          {home, "DSEC_CONTEXT=" + fifo},
		"bad-endpoint":  {home, "DSEC_ENDPOINT=:::", "DSEC_TOKEN=t"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, line := range []string{"sandbox get", "sandbox stop", "sandbox attach s1", "run", "image rm", "sandbox cp", "config use"} {
				begun := time.Now()
				out, errs, code := dsec(t, env, "", append(append([]string{"__complete"}, strings.Fields(line)...), "")...)
				if took := time.Since(begun); code != 0 || took > 10*time.Second { // the limit is 1 s
					t.Errorf("completion of %q takes %v, exit code %d", line, took, code)
				}
				if strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, ":") || !strings.HasPrefix(errs, "Completion ended with directive") {
					t.Errorf("completion of %q prints %q, %q", line, out, errs)
				}
			}
		})
	}
}

// TestProfilesOfTheServer: on a socket, while it runs.
func TestProfilesOfTheServer(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	socket := filepath.Join(dir, "pprof")
	cmd := program(t, []string{"HOME=" + dir}, "dev", "--data", dir+"/data", "--listen", "127.0.0.1:0", "--id-ranges", dir+"/ids.json", "--pool", "0",
		"--no-context", "--pprof", socket)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Errorf("dsec dev says %q, %v", line, err)
	}
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "GET /debug/pprof/goroutine?debug=1 HTTP/1.0\r\n\r\n"); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), "devmode.Run") {
		t.Errorf("goroutines: %v, %.300s", err, got)
	}
	if err := errors.Join(c.Close(), cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

// TestNoColour: a log at a terminal has colours, unless NO_COLOR is set.
func TestNoColour(t *testing.T) {
	need.Root(t)
	for name, want := range map[string]bool{"": true, "NO_COLOR=1": false} {
		dir := t.TempDir()
		c := newConsole(t)
		// Contexts can't be written there, which it logs.
		cmd := program(t, []string{"HOME=/proc/none", "TERM=xterm", name}, "dev", "--data", dir+"/data", "--listen", "127.0.0.1:0",
			"--id-ranges", dir+"/ids.json", "--pool", "0")
		cmd.Stderr = c.slave
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Errorf("dsec dev says %q, %v", line, err)
		}
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil {
			t.Error(err)
		}
		if err := errors.Join(c.slave.Close(), c.master.SetReadDeadline(time.Now().Add(time.Minute))); err != nil {
			t.Fatal(err)
		}
		log, _ := io.ReadAll(c.master) // until EIO, as nobody has the other end any more
		if got := bytes.Contains(log, []byte("\x1b[")); got != want || len(log) == 0 {
			t.Errorf("with %q the log has colours: %v, want %v:\n%s", name, got, want, log)
		}
	}
}

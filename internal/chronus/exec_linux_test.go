package chronus_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/aether"
	"golang.org/x/sys/unix"
)

func TestShortCommands(t *testing.T) {
	s := newSandbox(t)
	for name, tc := range map[string]struct {
		script      string
		out, errOut string
		code        int32
	}{
		"output":        {`printf 'a\n\n\r\nb'`, "a\n\n\r\nb", "", 0},
		"both":          {`echo out; echo err >&2; exit 3`, "out\n", "err\n", 3},
		"nul-bytes":     {`printf 'a\000b'`, "a\x00b", "", 0},
		"code-255":      {`exit 255`, "", "", 255},
		"nothing":       {`:`, "", "", 0},
		"stdin-is-null": {`cat; read x; echo $?`, "1\n", "", 0},
		"stdin-null-is": {`readlink /proc/self/fd/0`, "/dev/null\n", "", 0},
		"descriptors":   {`ls /proc/self/fd`, "0\n1\n2\n3\n", "", 0}, // 3 is ls reading the directory
		"privileges":    {`grep -E '^(Seccomp|NoNewPrivs|CapBnd):' /proc/self/status`, "CapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t2\n", "", 0},
		"nofile":        {`ulimit -n`, "1024\n", "", 0},
		"umask":         {`umask`, "0022\n", "", 0},
		"dev-stdout":    {`echo a >/dev/stdout; echo b >/dev/stderr; echo c >>/dev/stdout`, "a\nc\n", "b\n", 0},
		"session":       {`set -- $(cat /proc/self/stat); [ $6 = $$ ] && echo leader`, "leader\n", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.exec(aether.ExecStart{Shell: []byte(tc.script)}).finish()
			wantExit(t, r, tc.code)
			if string(r.out[0]) != tc.out || string(r.out[1]) != tc.errOut {
				t.Errorf("output %q, %q; want %q, %q", r.out[0], r.out[1], tc.out, tc.errOut)
			}
			if r.exited.StdoutTotal != int64(len(tc.out)) || r.exited.StderrTotal != int64(len(tc.errOut)) || r.exited.Truncated {
				t.Errorf("Exited = %+v", r.exited)
			}
		})
	}
	// Not through a shell, which ignores some itself.
	r := s.exe("grep", "-E", "^Sig(Ign|Blk|Cgt)", "/proc/self/status")
	if want := "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"; string(r.out[0]) != want {
		t.Errorf("signals %q, want %q", r.out[0], want)
	}
	if list := s.processes(); len(list) != 0 {
		t.Errorf("short commands are listed: %+v", list)
	}
}

func TestUserMayOnlyRunWhatItMay(t *testing.T) {
	s := newSandbox(t)
	s.sh(`mkdir -m 700 /opt/closed; cp /bin/busybox /opt/closed/true; cp /bin/busybox /opt/roots; chmod 700 /opt/roots`)
	for _, path := range []string{"/opt/closed/true", "/opt/roots"} {
		wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf(path), User: "1234"}).finish(), api.CodeCommandNotExecutable)
	}
	r := s.exec(aether.ExecStart{Shell: []byte("echo a >/dev/stdout"), User: "1234"}).finish()
	if string(r.out[0]) != "a\n" {
		t.Errorf("to /dev/stdout: %q", r.out)
	}
	r = s.exec(aether.ExecStart{Argv: bytesOf("grep", "-E", "^Cap(Inh|Prm|Eff|Amb)", "/proc/self/status"), User: "1234"}).finish()
	if got := strings.Fields(string(r.out[0])); len(got) != 8 || strings.Join([]string{got[1], got[3], got[5], got[7]}, "") != strings.Repeat("0", 64) {
		t.Errorf("capabilities %q", got)
	}
}

func TestEndsAreToldApart(t *testing.T) {
	s := newSandbox(t)
	r := s.exec(aether.ExecStart{Shell: []byte(`kill -9 $$`)}).finish()
	if r.err != nil || r.exited.HasCode || r.exited.Signal != int32(unix.SIGKILL) || r.exited.Cancelled || r.exited.OOMKilled {
		t.Errorf("kill -9: %v, %+v", r.err, r.exited)
	}
	r = s.exec(aether.ExecStart{Shell: []byte(`while :; do echo line; sleep 0.05; done`), TimeoutMS: 500}).finish()
	if n := bytes.Count(r.out[0], []byte("line\n")); r.err != nil || !r.exited.TimedOut || r.exited.TimeoutMS != 500 || n < 1 || n > 12 {
		t.Errorf("time-out: %v, %+v, %d lines", r.err, r.exited, n)
	}
	r = s.exec(aether.ExecStart{Shell: []byte(`x=$(head -c 400000000 /dev/zero | tr '\0' x); echo ${#x}`)}).finish()
	if r.err != nil || !r.exited.OOMKilled || r.exited.HasCode && r.exited.Code == 0 {
		t.Errorf("out of memory: %v, %+v", r.err, r.exited)
	}
}

// Case 21.
func TestMissingCommandFailsAtOnceWithAType(t *testing.T) {
	s := newSandbox(t)
	s.sh(`cd /tmp; echo x >plain; printf '#!/no/such\n' >lost; echo 'true' >text; chmod 755 lost text; mkdir dir; ln -s /tmp/loop loop`)
	for name, tc := range map[string]struct {
		command string
		code    api.Code
		exit    int
	}{
		"no-file":        {"/nope", api.CodeCommandNotFound, 127},
		"not-on-path":    {"nope", api.CodeCommandNotFound, 127},
		"directory":      {"/tmp/dir", api.CodeCommandNotExecutable, 126},
		"not-executable": {"/tmp/plain", api.CodeCommandNotExecutable, 126},
		"no-interpreter": {"/tmp/lost", api.CodeCommandNotFound, 127},
		"link-to-itself": {"/tmp/loop", api.CodeCommandNotExecutable, 126},
		"not-a-program":  {"/tmp/text", api.CodeCommandNotExecutable, 126},
		"below-a-file":   {"/tmp/plain/x", api.CodeCommandNotFound, 127},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			e := wantCode(t, s.exe(tc.command), tc.code)
			if e.ExitCode == nil || *e.ExitCode != tc.exit || !strings.Contains(e.Detail, tc.command) {
				t.Errorf("error %+v", e)
			}
			if d := time.Since(began); d > 3*time.Second { // before any watchdog
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestCommandIsFoundOnItsOwnPath(t *testing.T) {
	s := newSandbox(t)
	s.sh(`mkdir -p /opt/a /opt/b; echo no >/opt/a/tool; printf '#!/bin/sh\necho b "$@"' >/opt/b/tool; chmod 755 /opt/b/tool`)
	start := aether.ExecStart{Argv: bytesOf("tool", "1 2"), Env: bytesOf("PATH=/opt/none:/opt/a:/opt/b:/bin")}
	r := s.exec(start).finish()
	wantExit(t, r, 0)
	if string(r.out[0]) != "b 1 2\n" {
		t.Errorf("output %q", r.out[0])
	}
	start.Env = bytesOf("PATH=/opt/a")
	wantCode(t, s.exec(start).finish(), api.CodeCommandNotExecutable)
}

// Case 27.
func TestMissingWorkingDirectory(t *testing.T) {
	s := newSandbox(t)
	s.sh(`echo x >/tmp/file; mkdir -m 700 /tmp/closed`)
	for cwd, user := range map[string]string{"/nope": "", "/tmp/file": "", "relative": "", "/tmp/closed": "1234"} {
		r := s.exec(aether.ExecStart{Argv: bytesOf("pwd"), Cwd: []byte(cwd), User: user}).finish()
		if e := wantCode(t, r, api.CodeWorkdirNotFound); !strings.Contains(e.Detail, cwd) {
			t.Errorf("error %q doesn't name %q", e.Detail, cwd)
		}
	}
	start := aether.ExecStart{Shell: []byte(`pwd; stat -c '%u %g %a' .`), Cwd: []byte("/made/for/me"), CwdCreate: true, User: "1234:77"}
	r := s.exec(start).finish()
	wantExit(t, r, 0)
	if string(r.out[0]) != "/made/for/me\n1234 77 755\n" {
		t.Errorf("output %q", r.out[0])
	}
}

// Case 25.
func TestUserHasItsHomeAndGroups(t *testing.T) {
	s := newSandbox(t)
	s.sh(`echo 'bee:x:2000:2000::/home/bee:/bin/sh' >>/etc/passwd; printf 'bee:x:2000:\nhive:x:998:bee\n' >>/etc/group`)
	script := `echo $(id -u):$(id -g):$(id -G) $HOME ~ $USER:$LOGNAME`
	for user, want := range map[string]string{
		"bee":       "2000:2000:2000 998 /home/bee /home/bee bee:bee\n",
		"2000":      "2000:2000:2000 998 /home/bee /home/bee bee:bee\n",
		"bee:hive":  "2000:998:998 /home/bee /home/bee bee:bee\n",
		"1234":      "1234:0:0 / / :\n",
		"1234:5678": "1234:5678:5678 / / :\n",
	} {
		r := s.exec(aether.ExecStart{Shell: []byte(script), User: user}).finish()
		wantExit(t, r, 0)
		if string(r.out[0]) != want {
			t.Errorf("user %s: %q, want %q", user, r.out[0], want)
		}
	}
	for _, user := range []string{"nobodyhere", "bee:nosuch", "70000", "-1"} {
		wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), User: user}).finish(), api.CodeNoSuchUser)
	}
	// An account can be used by the command after the one that made it.
	s.sh(`echo 'late:x:1001:1001::/:/bin/sh' >>/etc/passwd`)
	wantExit(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), User: "late"}).finish(), 0)
}

func TestAccountFilesAreNotTrusted(t *testing.T) {
	s := newSandbox(t)
	for _, script := range []string{
		`rm /etc/passwd; mkfifo /etc/passwd`, `rm -r /etc/passwd; mkdir /etc/passwd`, `rm -r /etc/passwd; ln -s /dev/zero /etc/passwd`,
		`rm /etc/passwd; head -c 2000000 /dev/zero >/etc/passwd`, `rm /etc/passwd; ln -s passwd /etc/passwd`,
	} {
		s.sh(script)
		// A name that isn't known makes the files be read anew.
		for _, user := range []string{"ghost", "daemon"} {
			wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), User: user}).finish(), api.CodeNoSuchUser)
		}
		wantExit(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), User: "0"}).finish(), 0)
	}
}

// Case 3 and 4.
func TestStdin(t *testing.T) {
	s := newSandbox(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	feed := func(argv ...string) result {
		c := s.exec(aether.ExecStart{Argv: bytesOf(argv...), Stdin: true})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 10007)
				if c.st.Write(t.Context(), aether.Stdin, rest[:n]) != nil {
					return
				}
				rest = rest[n:]
			}
			_ = c.st.CloseWrite(aether.Stdin)
		}()
		r := c.finish()
		<-done
		return r
	}
	r := feed("wc", "-c")
	wantExit(t, r, 0)
	if want := fmt.Sprintln(len(data)); string(r.out[0]) != want || r.exited.StdinClosedEarly {
		t.Errorf("wc -c: %q, want %q; %+v", r.out[0], want, r.exited)
	}
	r = feed("head", "-c", "10")
	wantExit(t, r, 0)
	if string(r.out[0]) != "0123456789" || !r.exited.StdinClosedEarly {
		t.Errorf("head -c 10: %q, %+v", r.out[0], r.exited)
	}
	r = feed("sh", "-c", "wc -c </dev/stdin >/dev/stdout")
	wantExit(t, r, 0)
	if want := fmt.Sprintln(len(data)); string(r.out[0]) != want {
		t.Errorf("wc -c </dev/stdin: %q, %q", r.out[0], r.out[1])
	}
	if r = feed("cat"); !bytes.Equal(r.out[0][:1000], data[:1000]) || r.exited.StdoutTotal != int64(len(data)) {
		t.Errorf("cat: %d bytes, %+v", len(r.out[0]), r.exited)
	}
}

// Case 1.
func TestBackgroundChildDoesNotHoldTheCall(t *testing.T) {
	s := newSandbox(t)
	r := s.exec(aether.ExecStart{Shell: []byte(`(until [ -e /tmp/go ]; do usleep 10000; done; echo late) & echo hi`), ID: "bg", Keep: true}).finish()
	if string(r.out[0]) != "hi\n" || r.exited == nil || !r.exited.LeftProcesses {
		t.Fatalf("got %q, %+v, %v", r.out[0], r.exited, r.err)
	}
	wantExit(t, s.exe("touch", "/tmp/go"), 0)
	// Its later output isn't lost.
	var late result
	eventually(t, "the child's output", func() bool {
		late = s.attach(aether.Attach{ID: "bg", StdoutOffset: 3}).finish()
		return len(late.out[0]) > 0
	})
	if string(late.out[0]) != "late\n" {
		t.Errorf("later output %q", late.out[0])
	}
	r = s.exec(aether.ExecStart{Shell: []byte(`sleep 300 & echo hi`)}).finish()
	if string(r.out[0]) != "hi\n" || !r.exited.LeftProcesses {
		t.Errorf("got %q, %+v", r.out[0], r.exited)
	}
	if out := s.sh(`ps | grep -c '[s]leep 300'`); strings.TrimSpace(out) != "1" {
		t.Errorf("sleeps left: %q", out)
	}
}

// Cases 5 and 6.
func TestCancelAndTimeoutEndTheWholeTree(t *testing.T) {
	s := newSandbox(t)
	tree := []byte(`sleep 999 & setsid sleep 999 & (sleep 999 | cat) & while :; do :; done`)
	r := s.exec(aether.ExecStart{Shell: tree, TimeoutMS: 300}).finish()
	if r.err != nil || !r.exited.TimedOut || r.exited.LeftProcesses {
		t.Errorf("time-out: %v, %+v", r.err, r.exited)
	}
	const left = `ps | grep -cE '[s]leep 999|[w]hile' || :`
	if out := s.sh(left); strings.TrimSpace(out) != "0" {
		t.Errorf("left after a time-out: %q", out)
	}
	c := s.exec(aether.ExecStart{Shell: append([]byte("echo up;"), tree...)})
	c.until("output", func() bool { return len(c.out[0]) > 0 })
	if out := s.sh(left); strings.TrimSpace(out) == "0" {
		t.Error("the tree doesn't run")
	}
	c.st.Reset(nil)
	eventually(t, "the tree's end", func() bool { return strings.TrimSpace(s.sh(left)) == "0" })
	eventually(t, "the record's end", func() bool { return len(s.processes()) == 0 })
}

// Case 23.
func TestLongScriptsAndArguments(t *testing.T) {
	s := newSandbox(t)
	script := "#!/bin/sh\n" + strings.Repeat("# filler line of a long script\n", 1<<20/31) + "ls /proc/self/fd | wc -l; exit 7\n"
	r := s.exec(aether.ExecStart{Shell: []byte(script)}).finish()
	wantExit(t, r, 7)
	if strings.TrimSpace(string(r.out[0])) != "4" {
		t.Errorf("descriptors in a long script: %q", r.out[0])
	}
	r = s.exec(aether.ExecStart{Shell: []byte(script), User: "1234"}).finish()
	wantExit(t, r, 7)
	wantCode(t, s.exe("echo", strings.Repeat("x", 200<<10)), api.CodeTooLarge)
	many := make([]string, 40)
	for i := range many {
		many[i] = strings.Repeat("y", 100<<10)
	}
	wantCode(t, s.exe(append([]string{"echo"}, many...)...), api.CodeTooLarge)
	r = s.exe("printf", "%s", strings.Repeat("z", 100<<10))
	wantExit(t, r, 0)
	if len(r.out[0]) != 100<<10 {
		t.Errorf("%d bytes", len(r.out[0]))
	}
}

// Case 24.
func TestEnvironmentIsExact(t *testing.T) {
	s := newSandbox(t)
	env := bytesOf("A={\"x\":\"y z\"}", "B=1\n2\n", "C=$(id) `id` 'q' \"d\"", "D=\xff\xfe", "E=", "F=é")
	r := s.exec(aether.ExecStart{Argv: bytesOf("cat", "/proc/self/environ"), Env: env}).finish()
	wantExit(t, r, 0)
	want := bytes.Join(env, []byte{0})
	if !bytes.HasPrefix(r.out[0], append(want, 0)) {
		t.Errorf("environment %q, want first %q", r.out[0], want)
	}
	wantCode(t, s.exec(aether.ExecStart{Argv: bytesOf("true"), Env: bytesOf("=x")}).finish(), api.CodeInvalid)
}

func TestRefusals(t *testing.T) {
	s := newSandbox(t)
	for name, start := range map[string]aether.ExecStart{
		"nothing":        {},
		"both":           {Argv: bytesOf("true"), Shell: []byte("true")},
		"empty-name":     {Argv: bytesOf("")},
		"nul":            {Argv: bytesOf("a\x00b")},
		"bad-id":         {Argv: bytesOf("true"), ID: "../x"},
		"negative-limit": {Argv: bytesOf("true"), TimeoutMS: -1},
		"huge-output":    {Argv: bytesOf("true"), MaxOutput: 1 << 40},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, s.exec(start).finish(), api.CodeInvalid) })
	}
	other := &sandbox{node: s.node, id: "nosuch", box: s.box}
	t.Cleanup(other.drop)
	wantCode(t, other.exe("true"), api.CodeNotFound)
	wantCode(t, s.attach(aether.Attach{ID: "nosuch"}).finish(), api.CodeNoSuchProcess)
}

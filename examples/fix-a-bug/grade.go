package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/libdsec"
)

const (
	home     = "/home/app/tollgate" // where an agent finds the project
	bench    = "/grade"             // where it is graded
	maxFile  = 64 << 10             // bytes of a source file that is handed in
	patience = 2 * time.Minute      // for one command
	lifetime = 15 * 60              // seconds after which a sandbox ends, whatever happens to this program
)

//go:embed project/README.md project/tollgate/*.py project/tests/*.py
var files embed.FS

// project is the project as the agents get it.
func project() map[string][]byte {
	all := make(map[string][]byte)
	_ = fs.WalkDir(files, "project", func(name string, d fs.DirEntry, _ error) error { // it has no faults: it's in memory
		if !d.IsDir() {
			all[strings.TrimPrefix(name, "project/")], _ = files.ReadFile(name)
		}
		return nil
	})
	return all
}

// permitted tells whether an agent may change a file: the project's sources, not its tests, and nothing new.
func permitted(name string) bool { return path.Dir(name) == "tollgate" }

// worthless is why what was handed in is worth nothing, whatever it does.
type worthless string

func (w worthless) Error() string { return string(w) }

func spec(image, user string) api.Spec {
	return api.Spec{
		Image: image, User: user, Labels: map[string]string{"example": "fix-a-bug"},
		Resources: api.Resources{CPU: new(1.0), MemoryMB: new(int64(256)), PIDs: new(int64(128))},
		TTL:       api.TTL{MaxS: new(int64(lifetime))},
	}
}

// stop ends a sandbox also when ctx has ended.
func stop(ctx context.Context, sb *libdsec.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	_, _ = sb.Stop(ctx) // what can't be stopped now ends by its lifetime
}

// tarOf is a tar of files by name.
func tarOf(content map[string][]byte) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range content {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatPAX})
		_, _ = w.Write(text) // into memory
	}
	_ = w.Close()
	return &b
}

// infrastructure tells whether an error says something of DSec, and not of what an agent did.
func infrastructure(err error) bool {
	if _, ok := errors.AsType[worthless](err); ok {
		return false
	}
	e, ok := errors.AsType[*api.Error](err)
	return !ok || e.Code.Status() >= 500 || e.Code == api.CodeNotFound || e.Code == api.CodeWrongState
}

// collect reads what an agent may have changed. Each has to be a small regular file: no link, and nothing that has no end.
func collect(ctx context.Context, sb *libdsec.Sandbox) (map[string][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	handedIn := make(map[string][]byte)
	for name := range project() {
		if !permitted(name) {
			continue
		}
		text, err := collectFile(ctx, sb.Files(), home+"/"+name)
		if err != nil && !infrastructure(err) {
			why := err.Error()
			if e, ok := errors.AsType[*api.Error](err); ok {
				why = e.Title // its detail repeats the name
			}
			return nil, worthless(name + ": " + why)
		}
		if err != nil {
			return nil, err
		}
		handedIn[name] = text
	}
	return handedIn, nil
}

func collectFile(ctx context.Context, f *libdsec.Files, name string) ([]byte, error) {
	info, err := f.Lstat(ctx, name)
	if err != nil {
		return nil, err
	}
	if info.Type != api.FileRegular {
		return nil, worthless("it is a " + info.Type)
	}
	// A process of the agent's may change it between the two: what is read is limited by itself.
	r, err := f.Open(ctx, name, libdsec.ReadOptions{Max: maxFile})
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // it never fails
	text, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(text) > maxFile {
		return nil, worthless("it is too large")
	}
	return text, err
}

// grade judges sources in a fresh sandbox: nil is the full reward, a worthless error none, any other error no judgement.
//
// The tests are the original ones, and belong to root, while nobody runs them. The sources run in the tests' process and
// could make it say anything. So what they do is also compared here, outside, with what nobody there can know.
func grade(ctx context.Context, client *libdsec.Client, image string, handedIn map[string][]byte) error {
	sb, err := client.Create(ctx, spec(image, "root"))
	if err != nil {
		return err
	}
	defer stop(ctx, sb)
	tree := project()
	maps.Copy(tree, handedIn)
	if _, err := sb.Files().Untar(ctx, bench, tarOf(tree)); err != nil {
		return err
	}
	log, want := replay()
	got, err := judge(ctx, sb, libdsec.Cmd{Argv: []string{"python3", "-m", "tollgate", "3", "10"}, Stdin: strings.NewReader(log)})
	if err != nil {
		return err
	}
	if string(got.Stdout) != want {
		return worthless("it decides wrongly about requests that aren't in the tests")
	}
	_, err = judge(ctx, sb, libdsec.Cmd{Argv: []string{"python3", "-m", "unittest"}})
	return err
}

// judge runs a command that has to end with 0.
func judge(ctx context.Context, sb *libdsec.Sandbox, cmd libdsec.Cmd) (*libdsec.Result, error) {
	cmd.Cwd, cmd.User, cmd.Timeout = bench, "nobody", patience
	r, err := sb.Exec(ctx, cmd)
	what := strings.Join(cmd.Argv[1:3], " ")
	switch {
	case err != nil:
		return r, fmt.Errorf("%s: %w", what, err)
	case r.InfraError != "":
		return r, fmt.Errorf("%s: %s", what, r.InfraError)
	case r.TimedOut:
		return r, worthless(what + ": ran too long")
	case r.ExitCode == nil:
		return r, worthless(what + ": ended by " + r.Signal)
	case *r.ExitCode != 0:
		return r, worthless(fmt.Sprintf("%s: exit code %d", what, *r.ExitCode))
	}
	return r, nil
}

// replay makes a log of requests by chance, most of them at the edges of the window, and what a gate that lets 3 requests
// through in 10 seconds has to say. Times are multiples of a quarter, which are exact in binary.
func replay() (log, want string) {
	var in, out strings.Builder
	through := make(map[string][]float64)
	now := 0.0
	var dice [400]byte
	_, _ = rand.Read(dice[:]) // it never fails
	for _, die := range dice {
		client := string(rune('a' + die&3))
		if old := through[client]; len(old) > 0 && die&4 == 0 {
			now = max(now, old[0]+10)
		} else {
			now += float64(die>>5) / 4
		}
		fmt.Fprintf(&in, "%g %s\n", now, client)
		recent := through[client]
		for len(recent) > 0 && recent[0]+10 <= now {
			recent = recent[1:]
		}
		if len(recent) < 3 {
			recent = append(recent, now)
			fmt.Fprintf(&out, "%g %s allow\n", now, client)
		} else {
			fmt.Fprintf(&out, "%g %s deny %g\n", now, client, recent[0]+10-now)
		}
		through[client] = recent
	}
	return in.String(), out.String()
}

package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/libdsec"
)

// server is what is measured.
type server struct {
	client *client
	first  string // the `true` that its image has
	pid    int    // of one of our own
	data   string // its data folder
	down   []func() error
}

// instance is what the kernel's objects of a server of our own are called by.
func (s *server) instance() (string, error) {
	raw, err := os.ReadFile(filepath.Join(s.data, "instance"))
	return strings.TrimSpace(string(raw)), err
}

func (s *server) close() error {
	var err error
	for i := len(s.down) - 1; i >= 0; i-- {
		err = errors.Join(err, s.down[i]())
	}
	return err
}

// current is the server of the current context, or one of our own like it when there is none.
func (b *bench) current(ctx context.Context) (*server, error) {
	if b.Profile {
		b.notef("a server was started for this, dsec dev --no-context --pprof, because of the profile")
		return b.startServer(ctx, "default")
	}
	if b.Endpoint == "" {
		b.notef("no server of a current context answers: one was started for this, with its usual pools")
		return b.startServer(ctx, "default")
	}
	s := &server{client: newClient(b.Endpoint, b.Token)}
	s.down = append(s.down, func() error { s.client.close(); return nil })
	return s, b.give(s, b.Images)
}

// give puts the bench image into a server's own store. A server whose store isn't here is measured with its own image.
func (b *bench) give(s *server, store string) error {
	s.client.image, s.first = sourceImage, realTrue
	if store == "" {
		b.notef("the server's image store isn't at hand, so first commands are busybox's true (static, with a libc), also the peers'")
		return nil
	}
	withdraw, err := b.place.offer(store)
	if err != nil {
		return fmt.Errorf("offer the bench image: %w", err)
	}
	s.down = append(s.down, withdraw)
	s.client.image, s.first = benchImage, tinyTrue
	return nil
}

const (
	serverStart = 30 * time.Second
	serverStop  = 60 * time.Second
)

// startServer starts a `dsec dev` that nobody else uses, with further flags.
func (b *bench) startServer(ctx context.Context, name string, flags ...string) (_ *server, err error) {
	s := &server{pid: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	data := filepath.Join(b.work, "node-"+name)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(data + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"dev", "--data", data, "--listen", "127.0.0.1:0", "--no-context"}, flags...)
	if b.Profile {
		args = append(args, "--pprof", profileSocket(data))
	}
	cmd := exec.Command(b.Self, args...) //nolint:noctx // it is ended in order, after what ctx ends
	cmd.Env, cmd.Stderr = b.Env, log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.pid, s.data = cmd.Process.Pid, data
	s.down = append(s.down, func() error { return stopServer(cmd) })
	if err := waitReady(ctx, out); err != nil {
		return nil, fmt.Errorf("start %s dev: %w: %s", b.Self, err, lastLine(log))
	}
	at, err := libdsec.ReadContextFile(filepath.Join(data, "context.json"))
	if err != nil {
		return nil, err
	}
	s.client = newClient(at.Endpoint, at.Token)
	s.down = append(s.down, func() error { s.client.close(); return nil })
	return s, b.give(s, filepath.Join(data, "images"))
}

func waitReady(ctx context.Context, out io.Reader) error {
	said := make(chan string, 1) // one line is read
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		said <- line
	}()
	select {
	case line := <-said:
		if !strings.HasPrefix(line, "ready ") {
			return fmt.Errorf("it said %q", cmp.Or(line, "nothing"))
		}
		return nil
	case <-time.After(serverStart):
		return errors.New("it isn't ready")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func stopServer(cmd *exec.Cmd) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ended := make(chan error, 1) // one result
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(serverStop):
		return errors.Join(errors.New("the server didn't stop"), cmd.Process.Kill())
	}
}

package sandboxcmd

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/cmd/dsec/cli"
	"github.com/dsec-io/dsec/libdsec"
)

const (
	// forwardLimit bounds the sending of one signal.
	forwardLimit = 5 * time.Second
	// impatience is how many interrupts a command may ignore before it's killed.
	impatience = 3
)

// forwarder passes signals that dsec gets on to the remote command. Those that come before the command has started wait
// for it.
type forwarder struct {
	mu      sync.Mutex // guards everything below
	process *libdsec.Process
	early   []os.Signal
	count   int
}

// signal handles one signal. A command that goes on after several of them is killed.
func (f *forwarder) signal(ctx context.Context, kill context.CancelCauseFunc, s os.Signal) {
	f.mu.Lock()
	f.count++
	p, last := f.process, f.count >= impatience
	if p == nil {
		f.early = append(f.early, s)
	}
	f.mu.Unlock()
	switch {
	case last:
		kill(&cli.InterruptedError{Signal: s})
	case p != nil:
		forward(ctx, p, s)
	}
}

// to names the command, and sends it what came before.
func (f *forwarder) to(ctx context.Context, p *libdsec.Process) {
	f.mu.Lock()
	f.process = p
	early := f.early
	f.early = nil
	f.mu.Unlock()
	for _, s := range early {
		forward(ctx, p, s)
	}
}

// forward sends one signal to the whole tree, as a terminal does to a foreground job. A command that is gone needs none,
// and a broken connection shows elsewhere.
func forward(ctx context.Context, p *libdsec.Process, s os.Signal) {
	number, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, forwardLimit)
	defer cancel()
	_ = p.SignalTree(ctx, remoteSignal(number)) // see above
}

// remoteSignal names a signal of this machine.
func remoteSignal(s syscall.Signal) string {
	if s == syscall.SIGINT || s == syscall.SIGHUP || s == syscall.SIGQUIT {
		return api.SignalName(int(s)) // the same numbers everywhere
	}
	return "SIGTERM"
}

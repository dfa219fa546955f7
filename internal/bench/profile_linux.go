package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsec-io/dsec/internal/aetherbin"
	"github.com/dsec-io/dsec/internal/bench/flame"
	"github.com/dsec-io/dsec/internal/bench/meter"
)

const (
	profileTime  = 10 * time.Second
	profileQuick = time.Second
	profileRate  = 499 // samples a second of a shard, of each of its threads that runs
	aetherName   = "dsec-aether"
)

// profileSocket is where a server of our own serves its profiles.
func profileSocket(data string) string { return data + ".pprof" }

// profile has a contender go on after everything was measured, and draws where client, server and shards are meanwhile.
// s is nil where all is in this process.
func (b *bench) profile(ctx context.Context, name string, s *server, c *contender, concurrency int) error {
	if !b.Profile || ctx.Err() != nil {
		return ctx.Err()
	}
	took := profileTime
	if b.Quick {
		took = profileQuick
	}
	b.sayf("%s: a profile of %v", name, took)
	var ended atomic.Bool
	var load sync.WaitGroup
	for range concurrency {
		load.Go(func() {
			for !ended.Load() && ctx.Err() == nil {
				if err := c.do(ctx, &laps{}); err != nil && ctx.Err() == nil {
					b.profileFailed(name, err)
					return
				}
			}
		})
	}
	parts := []part{{"client", func() error { return b.clientFlame(ctx, name, took) }}}
	if s != nil {
		parts = append(parts, part{"server", func() error { return b.serverFlame(ctx, name, s, took) }},
			part{"aether", func() error { return b.aetherFlame(ctx, name, s, took) }})
	}
	errs := make([]error, len(parts))
	var profiles sync.WaitGroup
	for i, p := range parts {
		profiles.Go(func() { errs[i] = p.draw() })
	}
	profiles.Wait()
	ended.Store(true)
	load.Wait()
	for i, err := range errs {
		if missing, ok := errors.AsType[*missingError](err); ok {
			b.notef("no flame graph of the %s: %s", parts[i].name, missing.why)
			errs[i] = nil
		} else if err != nil {
			errs[i] = fmt.Errorf("profile of the %s: %w", parts[i].name, err)
		}
	}
	return errors.Join(errs...)
}

// part is one of those that are profiled.
type part struct {
	name string
	draw func() error
}

// missingError is why there can't be a profile here.
type missingError struct{ why string }

func (e *missingError) Error() string { return e.why }

// profileFailed counts a failure of the load, which goes with no figure, as a result of its own.
func (b *bench) profileFailed(name string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed("profile", err)
	b.document.Results = append(b.document.Results, Result{Name: name + ".profile", Unit: "ms", Failures: 1})
}

// flames writes a graph, and the same as a list.
func (b *bench) flames(name, part, unit string, stacks []flame.Stack) error {
	svg, err := flame.Graph{Title: "dsec bench " + name + ": " + part, Unit: unit}.SVG(stacks)
	if errors.Is(err, flame.ErrEmpty) {
		return &missingError{"it was never found running"}
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.Out, 0o755); err != nil {
		return err
	}
	var list strings.Builder
	total := int64(0)
	for _, s := range stacks {
		total += s.Value
	}
	fmt.Fprintf(&list, "%%\town %%\tfunction\n100\t0\tall: %d %s\n", total, unit)
	for _, s := range flame.Shares(stacks) {
		fmt.Fprintf(&list, "%.2f\t%.2f\t%s\n", 100*s.All, 100*s.Own, s.Function)
	}
	file := filepath.Join(b.Out, name+"-"+part)
	return errors.Join(os.WriteFile(file+".svg", []byte(svg), 0o644), os.WriteFile(file+".tsv", []byte(list.String()), 0o644))
}

// goFlames draws a profile of a Go program.
func (b *bench) goFlames(name, part string, raw []byte) error {
	stacks, unit, err := flame.Pprof(raw)
	if err != nil {
		return err
	}
	return b.flames(name, part, unit, stacks)
}

func (b *bench) clientFlame(ctx context.Context, name string, took time.Duration) error {
	var raw bytes.Buffer
	if err := pprof.StartCPUProfile(&raw); err != nil {
		return err
	}
	err := wait(ctx, took)
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	return b.goFlames(name, "client", raw.Bytes())
}

func (b *bench) serverFlame(ctx context.Context, name string, s *server, took time.Duration) error {
	var d net.Dialer
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", profileSocket(s.data))
	}}
	defer t.CloseIdleConnections()
	seconds := strconv.Itoa(int(took.Seconds()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://dsec/debug/pprof/profile?seconds="+seconds, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(raw))
	}
	return b.goFlames(name, "server", raw)
}

// aetherFlame has perf look at the shards, and at the commands that they start: they have no way to tell about
// themselves, and shall have none.
func (b *bench) aetherFlame(ctx context.Context, name string, s *server, took time.Duration) error {
	perf, err := exec.LookPath("perf")
	if err != nil {
		return &missingError{"perf isn't installed"}
	}
	pids, err := shardsOf(s)
	if err != nil {
		return err
	}
	data := filepath.Join(b.work, name+".perf")
	record := exec.CommandContext(ctx, perf, "record", "-q", "-e", "cpu-clock", "-F", strconv.Itoa(profileRate), "-g", "-o", data,
		"-p", strings.Join(pids, ","), "--", "sleep", strconv.Itoa(int(took.Seconds())))
	if out, err := record.CombinedOutput(); err != nil {
		return &missingError{fmt.Sprintf("perf record: %v: %s", err, bytes.TrimSpace(out))}
	}
	text, err := exec.CommandContext(ctx, perf, "script", "-i", data, "-F", "comm,ip,sym,dso").Output()
	if err != nil {
		return fmt.Errorf("perf script: %w", err)
	}
	program, err := aetherbin.Program()
	if err != nil {
		return err
	}
	symbols, err := flame.ReadSymbols(program)
	if err != nil {
		return err
	}
	stacks, err := flame.Perf(bytes.NewReader(text), aetherName, symbols)
	if err != nil {
		return err
	}
	return b.flames(name, "aether", "samples", stacks)
}

// shardsOf are the processes of a server's shards.
func shardsOf(s *server) ([]string, error) {
	instance, err := s.instance()
	if err != nil {
		return nil, err
	}
	node, err := meter.ReadNode(instance, s.pid)
	if err != nil {
		return nil, err
	}
	var pids []string
	for _, p := range node.Shards {
		pids = append(pids, strconv.Itoa(p.PID))
	}
	if len(pids) == 0 {
		return nil, errors.New("the server has no shards")
	}
	return pids, nil
}

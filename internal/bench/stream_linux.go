package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/dsec-io/dsec/api"
	"github.com/dsec-io/dsec/internal/bench/content"
	"github.com/dsec-io/dsec/internal/bench/meter"
	"github.com/dsec-io/dsec/libdsec"
)

const (
	streamBytes  = 1 << 30
	sampleEvery  = 20 * time.Millisecond
	streamedFile = "/tmp/bench-stream"
	uploadedFile = "/tmp/bench-upload"
	stepCPU      = "cpu"
	streamLimit  = 2048 // MiB of the sandbox: the pages of its files are charged to it
)

// stream is a run of the stream benchmark.
type stream struct {
	*bench
	s         *server
	sandbox   *libdsec.Sandbox
	content   *content.Content
	processes []*watched
}

// watched is a process on the way, and how its memory grows, in KiB.
type watched struct {
	name        string
	pid         int
	first, most int64
}

// look reads all processes on the way.
func (st *stream) look(each func(*watched, meter.Process)) error {
	for _, g := range st.processes {
		p, err := meter.ReadProcess(g.pid, false)
		if err != nil {
			return fmt.Errorf("look at the %s: %w", g.name, err)
		}
		each(g, p)
	}
	return nil
}

// cpu is the processor time that they have used.
func (st *stream) cpu() (sum time.Duration, err error) {
	err = st.look(func(_ *watched, p meter.Process) { sum += p.CPU })
	return sum, err
}

// stream moves much in one go: out of a command, into a file, out of a file.
func (b *bench) stream(ctx context.Context) (err error) {
	s, err := b.startServer(ctx, "stream")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	b.notef("a server was started for this, dsec dev --no-context, since the memory of its processes is watched")
	client, err := libdsec.New(libdsec.WithEndpoint(s.client.base, s.client.token))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	sandbox, err := client.Create(ctx, api.Spec{Image: s.client.image, Resources: api.Resources{MemoryMB: new(int64(streamLimit))}})
	if err != nil {
		return err
	}
	st := &stream{bench: b, s: s, sandbox: sandbox, content: content.New(cmp.Or(b.StreamBytes, streamBytes))}
	if err := st.prepare(ctx); err != nil {
		return err
	}
	watch, err := st.watch(ctx)
	if err != nil {
		return err
	}
	n, _ := b.counts(5, 1)
	p := &plan{n: n, rounds: n, concurrency: 1, failed: b.failed}
	ways := []string{"output", "output-ndjson", "upload", "download"}
	for i, do := range []func(context.Context, *laps, string) error{st.output, st.lines, st.upload, st.download} {
		p.contenders = append(p.contenders, &contender{name: ways[i], do: func(ctx context.Context, l *laps) error { return do(ctx, l, ways[i]) }})
	}
	b.sayf("stream: %d MiB, %d times each way", st.content.Size>>20, n)
	tallies := p.run(ctx)
	grown := watch()
	b.keep(1, tallies)
	for _, name := range ways {
		t := tallies[name]
		cpu := t.result(Stream+"."+name+".cpu", "ms", 1, t.timing(stepCPU, milliseconds()))
		cpu.Failures = 0 // told with the rate
		b.document.Results = append(b.document.Results, st.rate(name, t), cpu)
	}
	b.document.Results = append(b.document.Results, grown...)
	b.notef("output: a command's, by libdsec over GET /v1/aether; output-ndjson: the same by POST …/processes?stream=1, base64 in JSON; upload and download: PUT and GET …/files; MB is 1e6 bytes")
	b.notef("every byte that came is compared; uploads by their SHA-256 in the sandbox, after the clock has stopped")
	b.notef("cpu: the processor time of client, server, keeper and shard together for one transfer; that of the command isn't in it")
	b.notef("growth: the most memory, anonymous and shared, that a process had at any time since before the first byte, less what it had then; client is this process")
	for _, c := range p.contenders {
		if err := b.profile(ctx, Stream+"-"+c.name, s, c, 1); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// prepare puts the file into the sandbox.
func (st *stream) prepare(ctx context.Context) error {
	if err := st.put(ctx, streamedFile); err != nil {
		return err
	}
	return st.compare(ctx, streamedFile)
}

// rate makes a result of the times of transfers.
func (st *stream) rate(name string, t *tally) Result {
	s := t.find(name)
	mb := func(q float64) float64 {
		if d := s.quantile(q); d > 0 {
			return float64(st.content.Size) / 1e6 / d.Seconds()
		}
		return 0
	}
	return Result{
		Name: Stream + "." + name, Unit: "MB/s", Value: mb(.5), N: t.done, Failures: t.failed, Concurrency: 1, Peak: t.peak,
		P10: mb(.9), P50: mb(.5), P90: mb(.1), P99: mb(.01), // the slowest rate is the longest time
	}
}

// put uploads content.
func (st *stream) put(ctx context.Context, path string) error {
	resp, err := st.request(ctx, http.MethodPut, "/files?path="+path, st.content.Reader(), "application/octet-stream")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// request asks for something of the sandbox, and returns answers that are a success.
func (st *stream) request(ctx context.Context, method, path string, body io.Reader, kind string) (*http.Response, error) {
	c := st.s.client
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/v1/sandboxes/"+st.sandbox.ID()+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", kind)
	if r, ok := body.(*content.Reader); ok {
		req.ContentLength = r.Size
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // what there is of it
		return nil, errors.Join(refusedWith(method, path, resp.Status, raw), resp.Body.Close())
	}
	return resp, nil
}

// compare has the sandbox make the digest of a file.
func (st *stream) compare(ctx context.Context, path string) error {
	body, err := json.Marshal(api.ExecRequest{Shell: fmt.Sprintf("echo '%s  %s' | sha256sum -c", st.content.Digest, path)})
	if err != nil {
		return err
	}
	return st.s.client.exec(ctx, st.sandbox.ID(), body)
}

func (st *stream) upload(ctx context.Context, l *laps, name string) error {
	err := st.timed(l, name, func() error { return st.put(ctx, uploadedFile) })
	if err == nil {
		err = st.compare(ctx, uploadedFile)
	}
	return errors.Join(err, st.s.client.call(ctx, http.MethodDelete, "/v1/sandboxes/"+st.sandbox.ID()+"/files?path="+uploadedFile, nil, nil))
}

func (st *stream) download(ctx context.Context, l *laps, name string) error {
	return st.timed(l, name, func() error {
		resp, err := st.request(ctx, http.MethodGet, "/files?path="+streamedFile, http.NoBody, "")
		if err != nil {
			return err
		}
		check := st.content.Checker()
		_, err = io.CopyBuffer(check, resp.Body, make([]byte, 256<<10))
		return errors.Join(err, check.Whole(), resp.Body.Close())
	})
}

// timed takes the time of a transfer, by the wall and by the processors.
func (st *stream) timed(l *laps, name string, transfer func() error) error {
	before, err := st.cpu()
	if err != nil {
		return err
	}
	l.last = time.Now()
	err = transfer()
	l.lap(name)
	after, cpuErr := st.cpu()
	l.add(stepCPU, after-before)
	return errors.Join(err, cpuErr)
}

func (st *stream) output(ctx context.Context, l *laps, name string) error {
	return st.timed(l, name, func() error {
		check := st.content.Checker()
		p, err := st.sandbox.Start(ctx, libdsec.Cmd{Argv: []string{"cat", streamedFile}}, libdsec.StartOptions{
			Lossless: true,
			Handlers: libdsec.Handlers{OnStdout: func(b []byte) error { _, err := check.Write(b); return err }},
		})
		if err != nil {
			return err
		}
		status, err := p.Wait(ctx)
		if err == nil && (status.ExitCode == nil || *status.ExitCode != 0) {
			err = fmt.Errorf("cat ended with %+v", status)
		}
		return errors.Join(err, check.Whole())
	})
}

// lines is output as those have it who speak nothing but HTTP and JSON.
func (st *stream) lines(ctx context.Context, l *laps, name string) error {
	start, err := json.Marshal(api.StartRequest{ExecRequest: api.ExecRequest{Argv: []string{"cat", streamedFile}}, Lossless: true})
	if err != nil {
		return err
	}
	return st.timed(l, name, func() error {
		resp, err := st.request(ctx, http.MethodPost, "/processes?stream=1", bytes.NewReader(start), "application/json")
		if err != nil {
			return err
		}
		check := st.content.Checker()
		return errors.Join(events(resp.Body, check), check.Whole(), resp.Body.Close())
	})
}

// events reads lines of events until the end of the process, and writes its output to w.
func events(from io.Reader, w io.Writer) error {
	r := bufio.NewReaderSize(from, 1<<20)
	var data []byte
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("the stream ended early: %w", err)
		}
		// encoding/json alone would take longer than all else.
		if _, text, ok := bytes.Cut(line, []byte(`"data":"`)); ok && bytes.HasPrefix(line, []byte(`{"type":"stdout"`)) {
			text, _, _ = bytes.Cut(text, []byte(`"`))
			if data, err = base64.StdEncoding.AppendDecode(data[:0], text); err == nil {
				_, err = w.Write(data)
			}
			if err != nil {
				return err
			}
			continue
		}
		var ev api.StreamEvent
		if err := json.Unmarshal(line, &ev); err != nil {
			return fmt.Errorf("event %q: %w", line, err)
		}
		switch {
		case ev.Exit != nil && (ev.Exit.ExitCode == nil || *ev.Exit.ExitCode != 0):
			return fmt.Errorf("cat ended with %+v", ev.Exit)
		case ev.Exit != nil:
			return nil
		}
	}
}

// watch samples the memory of all processes on the way until the returned function is called, which tells how they grew.
func (st *stream) watch(ctx context.Context) (func() []Result, error) {
	instance, err := st.s.instance()
	if err != nil {
		return nil, err
	}
	node, err := meter.ReadNode(instance, st.s.pid)
	if err != nil {
		return nil, err
	}
	st.processes = []*watched{{name: "client", pid: os.Getpid()}, {name: "server", pid: node.Server.PID}, {name: "keeper", pid: node.Keeper.PID}}
	for _, p := range node.Shards {
		st.processes = append(st.processes, &watched{name: p.Name, pid: p.PID})
	}
	err = st.look(func(g *watched, p meter.Process) { g.first = p.AnonymousKiB + p.SharedKiB; g.most = g.first })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	samples, failure := 0, error(nil)
	wg.Go(func() {
		for wait(ctx, sampleEvery) == nil && failure == nil {
			failure = st.look(func(g *watched, p meter.Process) { g.most = max(g.most, p.AnonymousKiB+p.SharedKiB) })
			samples++
		}
	})
	return func() (out []Result) {
		cancel(nil) // the end of a good run
		wg.Wait()
		failures := 0
		if failure != nil {
			failures = 1
			st.failed("memory", failure)
		}
		for _, g := range st.processes {
			mib := float64(g.most-g.first) / 1024
			out = append(out, Result{
				Name: Stream + ".growth." + g.name, Unit: "MiB", Value: mib, N: samples, Failures: failures, Concurrency: 1,
				P10: mib, P50: mib, P90: mib, P99: mib,
			})
			failures = 0 // told once
		}
		return out
	}, nil
}

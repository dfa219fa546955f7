package bench

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/dsec-io/dsec/internal/aether"
	"github.com/dsec-io/dsec/internal/bench/codec"
)

// The lines of the codec benchmark; of the last two are peers.
const (
	lineEncode = "encode"
	lineDecode = "decode"
	lineRelay  = "relay"
	lineCopy   = "memcpy"
	lineCRC    = "crc32c"
)

// codec measures the Aether protocol's codec, in this process.
func (b *bench) codec(ctx context.Context) error {
	b.notef("real Aether connections with memory in the place of sockets; both checksums are made by encode and compared by decode; relay keeps the payload's, as an edge does")
	b.notef("memcpy and crc32c are one pass over as many bytes in the same run: encode and decode make one of each, relay one copy; GB is 1e9 bytes")
	b.notef(".cpu is by the processor time of all goroutines, which a busy machine disturbs less")
	for _, f := range []struct {
		name  string
		size  int
		bytes int // of one operation
	}{{"64k", aether.MaxDataAether, 64 << 20}, {"4k", 4 << 10, 8 << 20}, {"64B", 64, 256 << 10}} {
		if err := b.frames(ctx, f.name, f.size, f.bytes/f.size); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// frames measures frames of one size.
func (b *bench) frames(ctx context.Context, name string, size, each int) (err error) {
	tape, err := codec.Record(ctx, size)
	if err != nil {
		return fmt.Errorf("record frames of %d bytes: %w", size, err)
	}
	cpu := map[string]*tally{}
	p := &plan{concurrency: 1, failed: b.failed}
	p.n, p.rounds = b.counts(50, 10)
	for _, l := range []struct {
		name string
		open func(context.Context, *codec.Tape) (*codec.Line, error)
	}{
		{lineEncode, codec.Encode},
		{lineDecode, codec.Decode},
		{lineRelay, codec.Relay},
		{lineCopy, func(context.Context, *codec.Tape) (*codec.Line, error) { return codec.Copy(size), nil }},
		{lineCRC, func(context.Context, *codec.Tape) (*codec.Line, error) { return codec.Checksum(size), nil }},
	} {
		line, err := l.open(ctx, tape)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		defer func() { err = errors.Join(err, line.Close()) }()
		t := &tally{}
		cpu[l.name] = t
		p.contenders = append(p.contenders, &contender{name: l.name, do: func(ctx context.Context, laps *laps) error {
			began := used(unix.CLOCK_PROCESS_CPUTIME_ID)
			if err := line.Run(ctx, each); err != nil {
				return err
			}
			laps.lap(name)
			took := used(unix.CLOCK_PROCESS_CPUTIME_ID) - began
			t.done++
			t.wall += took
			t.rates = append(t.rates, 1/max(took, 1).Seconds())
			return nil
		}})
	}
	b.sayf("codec: frames of %d bytes", size)
	p.warm(ctx)
	for _, t := range cpu {
		*t = tally{}
	}
	tallies := p.run(ctx)
	b.keep(1, renamed(tallies, "codec-"+name))
	b.codecResults(name, size, each, [2]map[string]*tally{tallies, cpu})
	for _, c := range p.contenders[:3] {
		if err := b.profile(ctx, Codec+"-"+c.name+"-"+name, nil, c, 1); err != nil {
			return err
		}
	}
	return nil
}

// codecResults adds what was measured by the wall and by the processor: large frames in bytes, small ones by their number.
func (b *bench) codecResults(name string, size, each int, by [2]map[string]*tally) {
	scale, unit := float64(size*each)/1e9, "GB/s"
	if size < 1<<10 {
		scale, unit = float64(each), "frames/s"
	}
	scaled := func(t *tally) Figure {
		f := t.throughput()
		f.Value, f.P10, f.P50, f.P90, f.P99 = f.Value*scale, f.P10*scale, f.P50*scale, f.P90*scale, f.P99*scale
		return f
	}
	for i, suffix := range []string{"", ".cpu"} {
		for _, line := range []string{lineEncode, lineDecode, lineRelay} {
			t := by[i][line]
			r := t.result(Codec+"."+line+"."+name+suffix, unit, 1, scaled(t))
			r.Peak = 1
			for _, peer := range []string{lineCopy, lineCRC} {
				r.against(peer, scaled(by[i][peer]), true)
			}
			b.document.Results = append(b.document.Results, r)
		}
	}
}

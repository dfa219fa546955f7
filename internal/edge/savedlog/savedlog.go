// Package savedlog keeps the output of a sandbox's start process beyond the sandbox: of each of both outputs the first and
// the last bytes.
package savedlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/dsec-io/dsec/internal/aether"
)

// kept is how many bytes of each output are kept: the first and the last half.
const kept = 1 << 20

// excerpt is the first and the last bytes of an output.
type excerpt struct {
	head, tail []byte
	total      int64
	broken     bool // something after the head is missing, so what comes belongs to the tail
}

func (x *excerpt) add(p []byte) {
	x.total += int64(len(p))
	if room := kept/2 - len(x.head); !x.broken && room > 0 {
		n := min(room, len(p))
		x.head, p = append(x.head, p[:n]...), p[n:]
	}
	x.tail = append(x.tail, p...)
	if len(x.tail) >= kept {
		x.cut()
	}
}

func (x *excerpt) cut() {
	if n := len(x.tail) - kept/2; n > 0 {
		x.tail = append(x.tail[:0], x.tail[n:]...)
	}
}

func (x *excerpt) gap(n int64) {
	x.total += n
	x.broken, x.tail = true, x.tail[:0]
}

// Log is what is kept of an output.
type Log struct {
	Exited []byte // the message of the process's end; empty: it ran on
	outs   [2]excerpt
}

// header is the first line of a log's file; the bytes of both outputs, head and tail each, follow.
type header struct {
	Exited  []byte  `json:"exited,omitempty"`
	Outputs [2]size `json:"outputs"` // stdout and stderr
}

type size struct {
	Head  int   `json:"head"`
	Tail  int   `json:"tail"`
	Total int64 `json:"total"`
}

// Read takes in the stream of an attach to the process, up to its end.
func Read(ctx context.Context, s *aether.Stream) (*Log, error) {
	l := &Log{}
	for {
		f, err := s.Recv(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		err = l.take(&f)
		f.Release()
		if err != nil {
			return nil, err
		}
	}
	for i := range l.outs {
		l.outs[i].cut()
	}
	return l, nil
}

func (l *Log) take(f *aether.Frame) error {
	switch {
	case f.Channel == aether.Stdout || f.Channel == aether.Stderr:
		l.outs[f.Channel-aether.Stdout].add(f.Data)
	case f.Type == aether.MsgExited:
		l.Exited = bytes.Clone(f.Data)
	case f.Type == aether.MsgGap:
		var g aether.Gap
		if err := g.Unmarshal(f.Data); err != nil {
			return err
		}
		if g.Channel == uint8(aether.Stdout) || g.Channel == uint8(aether.Stderr) {
			l.outs[g.Channel-uint8(aether.Stdout)].gap(g.Length)
		}
	}
	return nil
}

// Encode makes the content of a file.
func (l *Log) Encode() ([]byte, error) {
	h := header{Exited: l.Exited}
	for i, x := range l.outs {
		h.Outputs[i] = size{len(x.head), len(x.tail), x.total}
	}
	raw, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode log: %w", err)
	}
	return bytes.Join([][]byte{raw, {'\n'}, l.outs[0].head, l.outs[0].tail, l.outs[1].head, l.outs[1].tail}, nil), nil
}

// Decode reads what Encode has made. Of a file that is shorter there is less.
func Decode(raw []byte) (*Log, error) {
	line, rest, _ := bytes.Cut(raw, []byte{'\n'})
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return nil, err
	}
	take := func(n int) []byte {
		n = max(0, min(n, len(rest)))
		var part []byte
		part, rest = rest[:n], rest[n:]
		return part
	}
	l := &Log{Exited: h.Exited}
	for i, size := range h.Outputs {
		l.outs[i] = excerpt{head: take(size.Head), tail: take(size.Tail), total: size.Total}
	}
	return l, nil
}

// Send puts both outputs on a stream, from a place in each.
func (l *Log) Send(ctx context.Context, s *aether.Stream, from [2]int64) error {
	for i := range l.outs {
		if err := l.outs[i].send(ctx, s, aether.Stdout+aether.Channel(i), from[i]); err != nil {
			return err
		}
	}
	return nil
}

func (x *excerpt) send(ctx context.Context, s *aether.Stream, ch aether.Channel, from int64) error {
	head, tail := int64(len(x.head)), x.total-int64(len(x.tail)) // where the one ends and the other begins
	if from < head {
		if err := s.Write(ctx, ch, x.head[from:]); err != nil {
			return err
		}
	}
	if from = max(from, head); from < tail {
		gap := aether.Gap{Channel: uint8(ch), Offset: from, Length: tail - from}
		if err := s.Send(ctx, aether.MsgGap, gap.AppendTo(nil)); err != nil {
			return err
		}
	}
	if from = max(from, tail); from < x.total {
		return s.Write(ctx, ch, x.tail[from-tail:])
	}
	return nil
}

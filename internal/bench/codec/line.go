package codec

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/dsec-io/dsec/internal/aether"
)

// Line is one thing that is measured. It is for one goroutine.
type Line struct {
	run   func(ctx context.Context, frames int) error
	close func() error
}

// Run has so many frames pass.
func (l *Line) Run(ctx context.Context, frames int) error { return l.run(ctx, frames) }

// Close ends the connections.
func (l *Line) Close() error { return l.close() }

// credit is what a server gives at the start; see [aether.Options].
const credit = 256 << 10

// Encode is a client that sends: payload copied and its checksum made, header made, written.
func Encode(ctx context.Context, t *Tape) (*Line, error) {
	to := newSink(t)
	client, err := aether.Client(to, t.options)
	if err != nil {
		return nil, err
	}
	s, err := client.Open(ctx, aether.Open{Method: "bench"})
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	data, sent := pattern(t.size), 0
	return &Line{
		run: func(ctx context.Context, frames int) error {
			for range frames {
				if err := s.Write(ctx, aether.Stdin, data); err != nil {
					return err
				}
			}
			sent += frames
			to.wait(sent)
			return client.Err()
		},
		close: client.Close,
	}, nil
}

// served is a server and the source that it reads from.
type served struct {
	from  *source
	conn  *aether.Conn
	ended chan struct{} // closed when all is over
}

func serve(ctx context.Context, t *Tape, handler func(context.Context, *aether.Stream)) (*served, error) {
	s := &served{from: newSource(t, credit), ended: make(chan struct{})}
	var err error
	if s.conn, err = aether.Server(s.from, t.options); err != nil {
		return nil, err
	}
	go func() {
		_ = s.conn.Serve(ctx, handler) // that the connection has ended is no news
		close(s.ended)
	}()
	return s, nil
}

func (s *served) close() error {
	err := s.conn.Close()
	<-s.ended
	return err
}

// Decode is a server that receives: header and its checksum read, payload copied and its checksum compared.
func Decode(ctx context.Context, t *Tape) (*Line, error) {
	var mu sync.Mutex
	more := sync.NewCond(&mu)
	received, failure := 0, error(nil) // guarded by mu
	s, err := serve(ctx, t, func(ctx context.Context, st *aether.Stream) {
		for {
			f, err := st.Recv(ctx)
			n := len(f.Data)
			if err == nil {
				f.Release()
			}
			mu.Lock()
			switch {
			case err != nil:
				failure = err
			case n != t.size:
				failure = fmt.Errorf("a frame of %d bytes instead of %d", n, t.size)
			default:
				received++
			}
			ended := failure != nil
			mu.Unlock()
			more.Signal()
			if ended {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	asked := 0
	return &Line{
		run: func(_ context.Context, frames int) error {
			asked += frames
			s.from.ask(frames)
			mu.Lock()
			defer mu.Unlock()
			for received < asked && failure == nil {
				more.Wait()
			}
			return failure
		},
		close: s.close,
	}, nil
}

// Relay is what an edge does between a client and an aether: frames go on with the payload's checksum that they came with.
func Relay(ctx context.Context, t *Tape) (*Line, error) {
	to := newSink(t)
	up, err := aether.Client(to, t.options)
	if err != nil {
		return nil, err
	}
	s, err := serve(ctx, t, func(ctx context.Context, st *aether.Stream) {
		next, err := up.Open(ctx, st.Open())
		if err != nil {
			st.Reset(nil)
			_ = to.Close() // whoever waits for frames learns it
			return
		}
		_ = aether.Relay(ctx, st, next) // its end is the line's
		_ = to.Close()
	})
	if err != nil {
		return nil, errors.Join(err, up.Close())
	}
	passed := 0
	return &Line{
		run: func(_ context.Context, frames int) error {
			passed += frames
			s.from.ask(frames)
			to.wait(passed)
			return errors.Join(up.Err(), s.conn.Err())
		},
		// The relay ends when both have.
		close: func() error { return errors.Join(up.Close(), s.close()) },
	}, nil
}

// Copy is the machine's speed in copying, from one buffer to others in turns, as frames are.
func Copy(size int) *Line {
	from, to := pattern(size), make([]byte, 4*size)
	return plain(func(i int) { copy(to[i%4*size:][:size], from) })
}

// Checksum is its speed in making the checksum that frames have.
func Checksum(size int) *Line {
	data, table := pattern(4*size), crc32.MakeTable(crc32.Castagnoli)
	sum := uint32(0)
	return plain(func(i int) { sum ^= crc32.Checksum(data[i%4*size:][:size], table) })
}

func plain(do func(i int)) *Line {
	return &Line{
		run: func(_ context.Context, frames int) error {
			for i := range frames {
				do(i)
			}
			return nil
		},
		close: func() error { return nil },
	}
}

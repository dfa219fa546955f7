package envs

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/dsec-io/dsec/rl/env"
)

// SnakeConfig is of many snakes on one field. Food earns 0.1 and makes a snake longer, as does what is left of a dead
// one; running into a wall or a snake is death, -1 and terminal for that snake, which begins again elsewhere at once.
// A snake that is MaxSteps old is truncated. Snakes move one after another. None can turn into its own neck: it goes
// straight on.
//
// Observation: the field around the head, bytes: 0 free, 1 food, 2 remains, 3 wall, 4 body, 5 head. Choices: up, down,
// left, right.
type SnakeConfig struct {
	Width, Height int // without walls; 64
	Snakes        int // 16
	Food          int // 128
	Vision        int // how far a snake sees, and how thick the walls are; 5
	MaxLength     int // 64
	MaxSteps      int // 1000
	NoRemains     bool
}

const (
	snakeFood, snakeRemains, snakeWall, snakeBody, snakeHead = 1, 2, 3, 4, 5

	snakeEats = 0.1
	snakeDies = -1
)

type snakes struct {
	batch
	c      SnakeConfig
	stride int // of the field, with walls
	window int
	fields []field
}

type field struct {
	rand env.Rand
	grid []uint8
	all  []snake
}

// snake is a ring of places, the newest at head.
type snake struct {
	ring         []int32
	head, length int
	tick, eaten  int32
}

// NewSnake makes a batch.
func NewSnake(envs int, c SnakeConfig) (env.Batch, error) {
	c.Width, c.Height, c.Snakes = or(c.Width, 64), or(c.Height, 64), or(c.Snakes, 16)
	c.Food, c.Vision, c.MaxLength, c.MaxSteps = or(c.Food, 128), or(c.Vision, 5), or(c.MaxLength, 64), or(c.MaxSteps, 1000)
	if err := positive("snake", c.Width, c.Height, c.Snakes, c.Food, c.Vision, c.MaxLength-1, c.MaxSteps); err != nil {
		return nil, err
	}
	if c.Width*c.Height <= c.Food+c.Snakes*(c.MaxLength+1) {
		return nil, fmt.Errorf("snake: a field of %dx%d is too small", c.Width, c.Height)
	}
	window := 2*c.Vision + 1
	base, err := newBatch("snake", envs, c.Snakes, env.Bytes(snakeHead, window, window), env.Discrete{N: 4})
	if err != nil {
		return nil, err
	}
	s := &snakes{batch: base, c: c, stride: c.Width + 2*c.Vision, window: window, fields: make([]field, envs)}
	for i := range s.fields {
		f := &s.fields[i]
		f.grid = make([]uint8, s.stride*(c.Height+2*c.Vision))
		f.all = make([]snake, c.Snakes)
		for j := range f.all {
			f.all[j].ring = make([]int32, c.MaxLength)
		}
	}
	return s, nil
}

// Reset implements [env.Batch].
func (s *snakes) Reset(_ context.Context, seeds []uint64) error {
	if err := s.begin(seeds); err != nil {
		return err
	}
	for i, seed := range seeds {
		f := &s.fields[i]
		f.rand = env.NewRand(seed)
		for j := range f.grid {
			f.grid[j] = snakeWall
		}
		for r := range s.c.Height {
			from := (r+s.c.Vision)*s.stride + s.c.Vision
			clear(f.grid[from : from+s.c.Width])
		}
		for j := range f.all {
			s.spawn(f, &f.all[j])
		}
		for range s.c.Food {
			f.grid[s.free(f)] = snakeFood
		}
		s.observe(i)
	}
	return nil
}

// free finds a place where something may be put. There always is one: NewSnake made sure of it.
func (s *snakes) free(f *field) int {
	place := func(n int) int { return (n/s.c.Width+s.c.Vision)*s.stride + n%s.c.Width + s.c.Vision }
	n := f.rand.IntN(s.c.Width * s.c.Height)
	for tries := 0; f.grid[place(n)]&^snakeRemains != 0; tries++ {
		if tries < 64 {
			n = f.rand.IntN(s.c.Width * s.c.Height)
		} else {
			n = (n + 1) % (s.c.Width * s.c.Height)
		}
	}
	return place(n)
}

func (s *snakes) spawn(f *field, k *snake) {
	at := s.free(f)
	k.head, k.length, k.tick, k.eaten = 0, 1, 0, 0
	k.ring[0] = int32(at)
	f.grid[at] = snakeHead
}

// back returns the place that the head left n moves ago.
func (k *snake) back(n int) int {
	i := k.head - n
	if i < 0 {
		i += len(k.ring)
	}
	return int(k.ring[i])
}

// observe writes what the snakes of a field see now.
func (s *snakes) observe(i int) {
	f := &s.fields[i]
	size := s.window * s.window
	rows := s.b.ObsU8[i*s.c.Snakes*size : (i+1)*s.c.Snakes*size]
	for j := range f.all {
		s.look(f, f.all[j].back(0), rows[j*size:(j+1)*size])
	}
}

// look copies the window around a place. Lines are copied by words that overlap where they have to.
func (s *snakes) look(f *field, at int, to []uint8) {
	w := s.window
	from := at - s.c.Vision*s.stride - s.c.Vision
	if w < 8 || w > 16 {
		for range w {
			copy(to[:w], f.grid[from:from+w])
			from, to = from+s.stride, to[w:]
		}
		return
	}
	for range w {
		line, out := f.grid[from:from+w], to[:w]
		a, b := binary.LittleEndian.Uint64(line), binary.LittleEndian.Uint64(line[w-8:])
		binary.LittleEndian.PutUint64(out, a)
		binary.LittleEndian.PutUint64(out[w-8:], b)
		from, to = from+s.stride, to[w:]
	}
}

// Step implements [env.Batch].
func (s *snakes) Step(context.Context) error {
	b := s.b
	clear(b.Rewards)
	clear(b.Terminals)
	clear(b.Truncations)
	for i := range s.fields {
		for j := range s.c.Snakes {
			s.move(i, j)
		}
		s.observe(i)
	}
	return nil
}

// move moves one snake.
func (s *snakes) move(i, j int) {
	f := &s.fields[i]
	k := &f.all[j]
	row := i*s.c.Snakes + j
	k.tick++
	a := int(s.b.Choices[row])
	way := (a&1)*2 - 1 // up, down
	if a&2 == 0 {
		way *= s.stride
	}
	head := k.back(0)
	if k.length > 1 && head+way == k.back(1) {
		way = -way
	}
	to := head + way
	tile := f.grid[to]
	if tile >= snakeWall {
		s.b.Rewards[row], s.b.Terminals[row] = snakeDies, 1
		s.end(i, j, row)
		return
	}
	grows := tile != 0
	if grows {
		s.b.Rewards[row] = snakeEats
		k.eaten++
	}
	if !grows || k.length == s.c.MaxLength {
		f.grid[k.back(k.length-1)] = 0
		k.length--
	}
	if k.length > 0 {
		f.grid[head] = snakeBody
	}
	f.grid[to] = snakeHead
	k.length++
	if k.head++; k.head == len(k.ring) {
		k.head = 0
	}
	k.ring[k.head] = int32(to)
	if tile == snakeFood {
		f.grid[s.free(f)] = snakeFood
	}
	if k.tick >= int32(s.c.MaxSteps) {
		s.b.Truncations[row] = 1
		s.end(i, j, row)
	}
}

// end finishes a life, with the view of where it ended, and begins the next.
func (s *snakes) end(i, j, row int) {
	f := &s.fields[i]
	k := &f.all[j]
	size := s.window * s.window
	s.look(f, k.back(0), s.b.FinalU8[row*size:(row+1)*size])
	s.stats.Episodes++
	s.stats.Length += float64(k.tick)
	s.stats.Score += float64(k.length)
	s.stats.Return += snakeEats * float64(k.eaten)
	if s.b.Terminals[row] != 0 {
		s.stats.Return += snakeDies
	}
	for n := range k.length {
		left := uint8(0)
		if n%2 == 1 && !s.c.NoRemains {
			left = snakeRemains
		}
		f.grid[k.back(n)] = left
	}
	s.spawn(f, k)
}

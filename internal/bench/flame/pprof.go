package flame

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// maxProfile bounds what a profile may unpack to.
const maxProfile = 256 << 20

// errProfile means that bytes aren't a profile.
var errProfile = errors.New("not a profile")

// profile is the part of a profile that a graph needs; numbers are into its table of strings.
type profile struct {
	strings   []string
	units     []uint64 // of the values of a sample
	samples   []sample
	locations map[uint64][]uint64 // the functions of each, the innermost first
	functions map[uint64]uint64   // their names
}

type sample struct{ locations, values []uint64 }

// Pprof reads a profile as runtime/pprof writes it. The values are those of its last kind, for processor time in unit.
func Pprof(raw []byte) (stacks []Stack, unit string, err error) {
	if bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(raw))
		if err == nil {
			raw, err = io.ReadAll(io.LimitReader(z, maxProfile))
		}
		if err != nil {
			return nil, "", fmt.Errorf("unpack profile: %w", err)
		}
	}
	p := profile{locations: map[uint64][]uint64{}, functions: map[uint64]uint64{}}
	if err := fields(raw, p.field); err != nil {
		return nil, "", err
	}
	if len(p.units) == 0 {
		return nil, "", fmt.Errorf("%w: no kind of sample", errProfile)
	}
	for _, s := range p.samples {
		if len(s.values) != len(p.units) {
			return nil, "", fmt.Errorf("%w: a sample has %d values of %d", errProfile, len(s.values), len(p.units))
		}
		st := Stack{Value: int64(s.values[len(s.values)-1])}
		for i := len(s.locations) - 1; i >= 0; i-- {
			functions := p.locations[s.locations[i]]
			for j := len(functions) - 1; j >= 0; j-- {
				st.Frames = append(st.Frames, p.text(p.functions[functions[j]]))
			}
		}
		stacks = append(stacks, st)
	}
	return stacks, p.text(p.units[len(p.units)-1]), nil
}

func (p *profile) text(i uint64) string {
	if i < uint64(len(p.strings)) {
		return p.strings[i]
	}
	return "?"
}

// field takes a field of the message Profile.
func (p *profile) field(number int, value uint64, b []byte) error {
	switch number {
	case 1: // ValueType
		return fields(b, func(number int, value uint64, _ []byte) error {
			if number == 2 {
				p.units = append(p.units, value)
			}
			return nil
		})
	case 2: // Sample
		var s sample
		err := fields(b, func(number int, value uint64, b []byte) (err error) {
			switch number {
			case 1:
				s.locations, err = numbers(s.locations, value, b)
			case 2:
				s.values, err = numbers(s.values, value, b)
			}
			return err
		})
		p.samples = append(p.samples, s)
		return err
	case 4: // Location
		return p.location(b)
	case 5: // Function
		var id, name uint64
		err := fields(b, func(number int, value uint64, _ []byte) error {
			switch number {
			case 1:
				id = value
			case 2:
				name = value
			}
			return nil
		})
		p.functions[id] = name
		return err
	case 6:
		p.strings = append(p.strings, string(b))
	}
	_ = value
	return nil
}

func (p *profile) location(b []byte) error {
	var id uint64
	var functions []uint64
	err := fields(b, func(number int, value uint64, b []byte) error {
		switch number {
		case 1:
			id = value
		case 4: // Line
			return fields(b, func(number int, value uint64, _ []byte) error {
				if number == 1 {
					functions = append(functions, value)
				}
				return nil
			})
		}
		return nil
	})
	p.locations[id] = functions
	return err
}

// numbers takes one number, or many in one field.
func numbers(to []uint64, value uint64, b []byte) ([]uint64, error) {
	if b == nil {
		return append(to, value), nil
	}
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errProfile
		}
		to, b = append(to, v), b[n:]
	}
	return to, nil
}

// fields walks over a message in the Protobuf wire format. b is nil for numbers.
func fields(msg []byte, each func(number int, value uint64, b []byte) error) error {
	for len(msg) > 0 {
		tag, n := binary.Uvarint(msg)
		if n <= 0 {
			return errProfile
		}
		msg = msg[n:]
		value, n := binary.Uvarint(msg)
		var b []byte
		switch tag & 7 {
		case 0:
			if n <= 0 {
				return errProfile
			}
		case 2:
			if n <= 0 || value > uint64(len(msg)-n) {
				return errProfile
			}
			b = msg[n : n+int(value) : n+int(value)]
			if b == nil {
				b = []byte{}
			}
			n += int(value)
		default:
			return fmt.Errorf("%w: wire type %d", errProfile, tag&7)
		}
		if err := each(int(tag>>3), value, b); err != nil {
			return err
		}
		msg = msg[n:]
	}
	return nil
}

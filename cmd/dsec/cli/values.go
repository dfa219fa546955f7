package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dsec-io/dsec/api"
)

// Pairs reads the KEY=VALUE words of a flag; nil for none.
func Pairs(flag string, list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // nothing given, no map
	}
	m := make(map[string]string, len(list))
	for _, s := range list {
		k, v, found := strings.Cut(s, "=")
		if !found || k == "" {
			return nil, api.FieldError(api.CodeInvalid, flag, "write KEY=VALUE", "%q isn't KEY=VALUE", s)
		}
		m[k] = v
	}
	return m, nil
}

// Optional is a flag that knows whether it was given.
type Optional[T any] struct {
	Value *T     // nil until it's given
	Kind  string // the value's name in help
	Parse func(string) (T, error)
	Then  func(T) // what is done with it, if anything
	text  string
}

func (o *Optional[T]) String() string { return o.text }

// Type implements pflag.Value: it is the value's name in help.
func (o *Optional[T]) Type() string { return o.Kind }

// Set implements pflag.Value.
func (o *Optional[T]) Set(s string) error {
	v, err := o.Parse(s)
	if err != nil {
		return err
	}
	o.Value, o.text = &v, s
	if o.Then != nil {
		o.Then(v)
	}
	return nil
}

// ParseCount reads a number above 0.
func ParseCount(s string) (int64, error) {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%q isn't a number above 0", s)
	}
	return v, nil
}

// ParseMemory reads a size with a unit and gives MiB. A bare number is refused: some tools read it as bytes, some as
// MiB, and either guess may be wrong by a factor of a million.
func ParseMemory(s string) (int64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	t = strings.TrimSuffix(strings.TrimSuffix(t, "b"), "i")
	if t == "" {
		return 0, fmt.Errorf("%q isn't a size", s)
	}
	var unit float64
	switch t[len(t)-1] {
	case 'k':
		unit = 1.0 / 1024
	case 'm':
		unit = 1
	case 'g':
		unit = 1024
	case 't':
		unit = 1024 * 1024
	default:
		return 0, fmt.Errorf("%q has no unit: write %sm for MiB or %sg for GiB", s, t, t)
	}
	v, err := strconv.ParseFloat(t[:len(t)-1], 64)
	mib := v * unit
	switch {
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v <= 0:
		return 0, fmt.Errorf("%q isn't a size", s)
	case mib < 1 || mib != math.Trunc(mib):
		return 0, fmt.Errorf("%q isn't a whole number of MiB", s)
	case mib > 1<<40:
		return 0, fmt.Errorf("%q is too large", s)
	}
	return int64(mib), nil
}

// Seconds is a duration flag that also takes a bare number of seconds.
type Seconds time.Duration

// Type implements pflag.Value.
func (d *Seconds) Type() string { return "duration" }

func (d *Seconds) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

// Set implements pflag.Value.
func (d *Seconds) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		var n float64
		if n, err = strconv.ParseFloat(s, 64); err == nil && n < math.MaxInt64/1e9 {
			v = time.Duration(n * 1e9)
		}
	}
	if err != nil || v <= 0 {
		return fmt.Errorf("%q isn't a time above 0 (30s, 5m, 1h30m)", s)
	}
	*d = Seconds(v)
	return nil
}

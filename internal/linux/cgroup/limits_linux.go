package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// periodUS is the period over which the CPU limit holds, in microseconds: the kernel's default.
const periodUS = 100_000

// Limits bound what a box may use. A zero is no limit.
type Limits struct {
	Memory int64   // bytes; swap is always off
	CPU    float64 // cores
	PIDs   int64   // processes and threads
}

// InUseError says that a memory limit can't be lowered, because more is in use and can't be reclaimed.
type InUseError struct{ Limit, Usage int64 }

func (e *InUseError) Error() string {
	return fmt.Sprintf("memory limit of %d bytes: %d bytes are in use", e.Limit, e.Usage)
}

// Unwrap is EBUSY, as the kernel says it.
func (e *InUseError) Unwrap() error { return unix.EBUSY }

// CPUs is the number of processors that a limit of cores shows in a sandbox: the next whole number, at least 1.
func CPUs(cores float64) int { return max(1, int(math.Ceil(cores))) }

// SetLimits changes the limits, upwards and downwards. It fails with a [*InUseError] if more memory than the new limit
// is in use and can't be reclaimed, and then nothing has changed: memory is set first, the others can't fail for a
// reason that lies in the box. Nothing is killed to meet a limit.
func (b *Box) SetLimits(l Limits) error {
	if l.Memory < 0 || l.PIDs < 0 || l.CPU < 0 || math.IsNaN(l.CPU) || l.CPU > 1<<20 {
		return fmt.Errorf("limits %+v: %w", l, fs.ErrInvalid)
	}
	d := b.sh.dirs
	var err error
	if d.Memory >= 0 {
		err = b.memoryV1(l.Memory)
	} else {
		err = b.memoryV2(l.Memory)
	}
	if err != nil {
		return err
	}
	if err := b.setCPU(l.CPU); err != nil {
		return err
	}
	value := "max"
	if l.PIDs > 0 {
		value = strconv.FormatInt(l.PIDs, 10)
	}
	return writeFile(pick(d.PIDs, d.V2), b.name+"/pids.max", value)
}

// pick is the v1 directory of a controller, or v2's if it has none.
func pick(v1, v2 int) int {
	if v1 >= 0 {
		return v1
	}
	return v2
}

func (b *Box) setCPU(cores float64) error {
	quota := int64(-1)
	if cores > 0 {
		quota = max(1000, int64(math.Ceil(cores*periodUS))) // the kernel takes no less than a millisecond
	}
	d := b.sh.dirs
	if d.CPU >= 0 {
		// The period is set too, because a kernel may have been built or a group been made with another one.
		if err := writeFile(d.CPU, b.name+"/cpu.cfs_period_us", strconv.Itoa(periodUS)); err != nil {
			return err
		}
		return writeFile(d.CPU, b.name+"/cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
	}
	value := "max"
	if quota > 0 {
		value = strconv.FormatInt(quota, 10)
	}
	return writeFile(d.V2, b.name+"/cpu.max", value+" "+strconv.Itoa(periodUS))
}

// noSwap keeps the box out of swap. On v1 that is memory plus swap limited to memory alone, by memoryV1, where the
// kernel counts swap, and a swappiness of 0, which alone must do where it doesn't.
func (b *Box) noSwap() error {
	d := b.sh.dirs
	err := error(nil)
	if d.Memory >= 0 {
		err = writeFile(d.Memory, b.name+"/memory.swappiness", "0")
	} else {
		err = writeFile(d.V2, b.name+"/memory.swap.max", "0")
	}
	if isGone(err) {
		return nil // a kernel without swap
	}
	return err
}

const (
	v1Limit = "/memory.limit_in_bytes"
	v1Swap  = "/memory.memsw.limit_in_bytes" // memory and swap together; must not be below v1Limit at any time
)

func (b *Box) memoryV1(limit int64) error {
	dir, value := b.sh.dirs.Memory, strconv.FormatInt(limit, 10)
	if limit == 0 {
		limit, value = math.MaxInt64, "-1"
	}
	old, err := readInt(dir, b.name+v1Limit)
	if err != nil {
		return err
	}
	first, second := v1Limit, v1Swap
	if limit > old {
		first, second = v1Swap, v1Limit
	}
	for i, file := range []string{first, second} {
		err := writeFile(dir, b.name+file, value)
		if file == v1Swap && isGone(err) {
			err = nil // a kernel that doesn't count swap
		}
		if err == nil {
			continue
		}
		if i == 1 {
			err = errors.Join(err, writeFile(dir, b.name+first, strconv.FormatInt(old, 10)))
		}
		if errors.Is(err, unix.EBUSY) {
			usage, _ := readInt(dir, b.name+"/memory.usage_in_bytes")
			return &InUseError{Limit: limit, Usage: usage}
		}
		return err
	}
	return nil
}

// memoryV2 sets memory.max. The kernel would kill to meet a limit below what is in use, so a lower limit is set as
// memory.high first, which reclaims, slows the box down and never kills.
func (b *Box) memoryV2(limit int64) error {
	dir, value := b.sh.dirs.V2, strconv.FormatInt(limit, 10)
	if limit == 0 {
		return writeFile(dir, b.name+"/memory.max", "max")
	}
	old, err := readInt(dir, b.name+"/memory.max")
	if err != nil {
		return err
	}
	if limit >= old {
		return writeFile(dir, b.name+"/memory.max", value)
	}
	err = b.squeeze(limit, value)
	if err == nil {
		err = writeFile(dir, b.name+"/memory.max", value)
	}
	return errors.Join(err, writeFile(dir, b.name+"/memory.high", "max"))
}

func (b *Box) squeeze(limit int64, value string) error {
	dir := b.sh.dirs.V2
	var usage int64
	// A signal of Go's scheduler ends the kernel's reclaim early and silently, hence more than one try.
	for range 5 {
		if err := writeFile(dir, b.name+"/memory.high", value); err != nil {
			return err
		}
		var err error
		if usage, err = readInt(dir, b.name+"/memory.current"); err != nil || usage <= limit {
			return err
		}
	}
	return &InUseError{Limit: limit, Usage: usage}
}

// Usage is what a box uses.
type Usage struct {
	Memory      int64 // bytes, the cache among them
	Cache       int64 // bytes of files that the kernel keeps as long as nobody needs the memory
	MemoryPeak  int64 // bytes; 0 where the kernel doesn't tell
	MemoryLimit int64 // bytes; 0: none
	PIDs        int64 // processes and threads
	PIDsRefused int64 // that were refused because of the limit
	OOMKills    int64
	CPU         time.Duration
	Throttled   time.Duration // how long the CPU limit held the box back
}

// cache is what of the box's memory holds contents of files: what the kernel takes back first. Files in memory (tmpfs)
// aren't among it.
func (b *Box) cache() (int64, error) {
	dir, prefix := b.sh.dirs.V2, ""
	if b.sh.dirs.Memory >= 0 {
		dir, prefix = b.sh.dirs.Memory, "total_"
	}
	stat, err := readFile(dir, b.name+"/memory.stat")
	if err != nil {
		return 0, err
	}
	idle, err := findKey(stat, "memory.stat", prefix+"inactive_file")
	if err != nil {
		return 0, err
	}
	active, err := findKey(stat, "memory.stat", prefix+"active_file")
	return idle + active, err
}

// Usage reads the box's counters.
func (b *Box) Usage() (Usage, error) {
	d, errs := b.sh.dirs, []error(nil)
	number := func(dir int, file string) int64 {
		n, err := readInt(dir, b.name+"/"+file)
		errs = append(errs, err)
		return n
	}
	var u Usage
	u.MemoryLimit, u.MemoryPeak = d.MemoryBounds(b.name)
	if d.Memory >= 0 {
		u.Memory = number(d.Memory, "memory.usage_in_bytes")
	} else {
		u.Memory = number(d.V2, "memory.current")
	}
	cache, err := b.cache()
	u.Cache, errs = min(cache, u.Memory), append(errs, err)
	u.PIDs = number(pick(d.PIDs, d.V2), "pids.current")
	u.OOMKills, u.PIDsRefused, err = b.hits()
	errs = append(errs, err)
	// v2 counts time in every group, with or without the cpu controller.
	stat, err := readFile(d.V2, b.name+"/cpu.stat")
	errs = append(errs, err)
	used, err := findKey(stat, "cpu.stat", "usage_usec")
	u.CPU, errs = time.Duration(used)*time.Microsecond, append(errs, err)
	if d.CPU >= 0 {
		held, err := readKey(d.CPU, b.name+"/cpu.stat", "throttled_time")
		u.Throttled, errs = time.Duration(held), append(errs, err)
	} else {
		held, err := findKey(stat, "cpu.stat", "throttled_usec")
		u.Throttled, errs = time.Duration(held)*time.Microsecond, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Usage{}, fmt.Errorf("usage of %s/%s: %w", b.sh.name, b.name, err)
	}
	return u, nil
}

package meter

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what the machine's memory is used for, in KiB. Differences of two of them are Memory, too.
type Memory struct {
	Anonymous  int64 // of processes
	Slab       int64 // objects of the kernel: inodes, namespaces, groups, …
	PageTables int64
	Stacks     int64 // the kernel's, one a thread
	PerCPU     int64
	Sockets    int64 // buffers
	Shared     int64 // tmpfs and shared memory
	PageCache  int64 // of files, without Shared; most of it can be given back
	Free       int64
	Available  int64 // without swapping, by the kernel's estimate
}

// ReadMemory asks the kernel.
func ReadMemory() (Memory, error) { return readMemoryIn("/proc") }

func readMemoryIn(proc string) (Memory, error) {
	var m Memory
	raw, err := os.ReadFile(filepath.Join(proc, "meminfo"))
	if err != nil {
		return m, fmt.Errorf("memory of the machine: %w", err)
	}
	var buffers, cached int64
	fields := map[string]*int64{
		"AnonPages:": &m.Anonymous, "Slab:": &m.Slab, "PageTables:": &m.PageTables, "KernelStack:": &m.Stacks, "Percpu:": &m.PerCPU,
		"Shmem:": &m.Shared, "MemFree:": &m.Free, "MemAvailable:": &m.Available, "Buffers:": &buffers, "Cached:": &cached,
	}
	found := 0
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 || fields[f[0]] == nil {
			continue
		}
		if *fields[f[0]], err = strconv.ParseInt(f[1], 10, 64); err != nil {
			return m, fmt.Errorf("memory of the machine: %q: %w", line, err)
		}
		found++
	}
	if found != len(fields) {
		return m, fmt.Errorf("memory of the machine: %d of %d lines are in /proc/meminfo", found, len(fields))
	}
	m.PageCache = buffers + cached - m.Shared
	m.Sockets, err = socketKiB(filepath.Join(proc, "net/sockstat"))
	return m, err
}

// socketKiB adds up what protocols hold in buffers; sockstat counts pages.
func socketKiB(path string) (int64, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("memory of sockets: %w", err)
	}
	pages, words := int64(0), strings.Fields(string(raw))
	for i, w := range words {
		if w == "mem" && i+1 < len(words) {
			n, err := strconv.ParseInt(words[i+1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory of sockets: %w", err)
			}
			pages += n
		}
	}
	return pages * int64(os.Getpagesize()) / 1024, nil
}

// DropNames has the kernel give up names and inodes that it only keeps in case somebody asks for them again: they count as
// slab, whoever caused them.
func DropNames() error {
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0); err != nil {
		return fmt.Errorf("drop unused names: %w", err)
	}
	return nil
}

// Minus is what came to be used between o and m.
func (m Memory) Minus(o Memory) Memory {
	return Memory{
		Anonymous: m.Anonymous - o.Anonymous, Slab: m.Slab - o.Slab, PageTables: m.PageTables - o.PageTables, Stacks: m.Stacks - o.Stacks,
		PerCPU: m.PerCPU - o.PerCPU, Sockets: m.Sockets - o.Sockets, Shared: m.Shared - o.Shared, PageCache: m.PageCache - o.PageCache,
		Free: m.Free - o.Free, Available: m.Available - o.Available,
	}
}

// Kind is one use of memory.
type Kind struct {
	Name string
	KiB  int64
}

// Kinds are all uses but the page cache, in the order in which they are shown.
func (m Memory) Kinds() []Kind {
	return []Kind{
		{"anonymous", m.Anonymous},
		{"slab", m.Slab},
		{"page-tables", m.PageTables},
		{"kernel-stacks", m.Stacks},
		{"per-cpu", m.PerCPU},
		{"sockets", m.Sockets},
		{"shared", m.Shared},
	}
}

// Used is the sum of [Memory.Kinds].
func (m Memory) Used() int64 {
	sum := int64(0)
	for _, k := range m.Kinds() {
		sum += k.KiB
	}
	return sum
}

package leakcheck

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ourPrograms are the names by which the kernel knows our processes outside of any cgroup of ours.
var ourPrograms = []string{"dsec-aether", "dsec-init"} //nolint:gochecknoglobals // a constant table

// Take looks at everything now.
func Take() (Snapshot, error) {
	mounts, err := readMounts()
	if err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{}
	for _, m := range mounts {
		s.Mounts = append(s.Mounts, m.id+" "+m.fsType+" "+m.dir)
		if m.fsType == "cgroup" || m.fsType == "cgroup2" {
			dirs, err := cgroupDirs(m.dir)
			if err != nil {
				return Snapshot{}, err
			}
			s.Cgroups = append(s.Cgroups, dirs...)
		}
	}
	// The same hierarchy may be mounted twice at one place.
	slices.Sort(s.Cgroups)
	s.Cgroups = slices.Compact(s.Cgroups)
	if err := s.readProcesses(); err != nil {
		return Snapshot{}, err
	}
	if s.Loops, err = filepath.Glob("/sys/block/loop*/loop/backing_file"); err != nil {
		return Snapshot{}, err
	}
	s.FDs, err = ownFDs()
	return s, err
}

type mountEntry struct{ id, fsType, dir string }

// readMounts parses mountinfo: "ID PARENT MAJ:MIN ROOT DIR OPTIONS [TAGS…] - TYPE SOURCE SUPEROPTIONS".
func readMounts() ([]mountEntry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []mountEntry
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		fsType, _, _ := strings.Cut(after, " ")
		if !ok || len(fields) < 6 {
			return nil, fmt.Errorf("mountinfo line %q: not understood", lines.Text())
		}
		all = append(all, mountEntry{id: fields[0], fsType: fsType, dir: fields[4]})
	}
	return all, lines.Err()
}

// cgroupDirs lists the directories of our instances in one hierarchy. Directories may go while it looks.
func cgroupDirs(root string) ([]string, error) {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && strings.Contains(strings.TrimPrefix(path, root), "/"+cgroupPrefix):
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs, err
}

// readProcesses fills in the network namespaces of all processes, and the processes that are ours.
func (s *Snapshot) readProcesses() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	nets := make(map[string]int)
	for _, e := range entries {
		if e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if net, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil {
			nets[net]++
		}
		if p, ok := ourProcess(dir); ok {
			s.Processes = append(s.Processes, e.Name()+"/"+p)
		}
	}
	for net := range nets {
		s.NetNS = append(s.NetNS, net)
	}
	slices.Sort(s.NetNS)
	return nil
}

// ourProcess describes the process in dir if it is one of ours: in a cgroup of an instance, or running a program of
// ours. A zombie has neither an executable nor namespaces, but still its name and cgroup.
func ourProcess(dir string) (string, bool) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return "", false
	}
	// "PID (COMM) STATE PPID …": the name may hold spaces and parentheses, the 20th field after it is the start time.
	open, end := strings.IndexByte(string(stat), '('), strings.LastIndexByte(string(stat), ')')
	if open < 0 || end < open {
		return "", false
	}
	comm, fields := string(stat[open+1:end]), strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return "", false
	}
	if fields[0] == "Z" && fields[1] == "1" {
		return "", false // all that can be done about it is up to the machine's init
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	exe, _ := os.Readlink(filepath.Join(dir, "exe"))
	ours := slices.ContainsFunc(ourPrograms, func(name string) bool {
		return strings.HasPrefix(comm, name) || strings.HasPrefix(exe, "/memfd:"+name) || filepath.Base(exe) == name
	})
	group := ""
	if _, after, ok := strings.Cut(string(cgroups), "/"+cgroupPrefix); ok {
		group, _, _ = strings.Cut(cgroupPrefix+after, "\n")
		ours = true
	}
	return fmt.Sprintf("%s %s state %s %s", fields[19], comm, fields[0], group), ours
}

// ownFDs lists what this process's descriptors refer to. Inode numbers are cut off: a socket that was closed and
// another that was opened are no leak.
func ownFDs() ([]string, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	kinds := make(map[string]int)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // the one that read the folder
		}
		kind, _, _ := strings.Cut(target, ":[")
		kinds[kind]++
	}
	return numbered(kinds), nil
}

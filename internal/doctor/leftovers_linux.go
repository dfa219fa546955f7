package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsec-io/dsec/internal/flock"
	"github.com/dsec-io/dsec/internal/idrange"
	"github.com/dsec-io/dsec/internal/linux/cgroup"
)

// runFolders is where instances have their sockets whose data folder has too long a name for them.
const runFolders = "/run/dsec"

// cleanLimit bounds the removal of one instance's leftovers.
const cleanLimit = time.Minute

// Leftovers finds what instances have that nobody serves: the lock of their data folder is free, or the folder is gone
// and no process has it open. An instance that the id range file doesn't name is left out: where its data folder is, and
// so whether it lives, isn't known. What a stopped instance has in its data folder is no leftover.
func Leftovers(o Options) ([]Leftover, error) {
	claims, err := idrange.List(o.IDRanges)
	if err != nil {
		return nil, err
	}
	groups, err := cgroup.Instances()
	if err != nil {
		return nil, err
	}
	var all []Leftover
	for _, c := range claims {
		l := Leftover{Instance: c.Instance, DataDir: c.DataDir, Claim: true}
		if !validInstance(c.Instance) || !filepath.IsAbs(c.DataDir) {
			continue // written by nobody of us
		}
		served, err := l.look()
		if err != nil {
			return nil, err
		}
		if served {
			continue
		}
		if i := slices.IndexFunc(groups, func(g cgroup.InstanceGroups) bool { return g.Instance == c.Instance }); i >= 0 {
			l.Groups, l.Processes = true, groups[i].Processes
		}
		if l.Groups || !l.Folder {
			all = append(all, l)
		}
	}
	return all, nil
}

func validInstance(id string) bool { return regexp.MustCompile(`^[a-z0-9]{4,32}$`).MatchString(id) }

// look finds the instance's folders, and tells whether somebody serves it. What can't be found out counts as yes.
func (l *Leftover) look() (served bool, err error) {
	if st, err := os.Lstat(filepath.Join(runFolders, l.Instance)); err == nil && st.IsDir() {
		l.RunDir = filepath.Join(runFolders, l.Instance)
	}
	switch _, err := os.Stat(l.DataDir); {
	case errors.Is(err, fs.ErrNotExist):
		return l.open()
	case err != nil:
		return true, nil
	}
	if id, err := os.ReadFile(filepath.Join(l.DataDir, "instance")); err != nil || strings.TrimSpace(string(id)) != l.Instance {
		// The folder is another's now, or was never completed: a server of ours would have it open.
		return l.open()
	}
	l.Folder = true
	free, err := flock.Free(filepath.Join(l.DataDir, "lock"))
	return err != nil || !free, nil
}

// open tells whether a process has the lock file of the instance open, wherever its data folder is now.
func (l *Leftover) open() (bool, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return true, err
	}
	for _, e := range entries {
		if e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && os.Geteuid() != 0 {
			return true, nil // not ours to see
		}
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
			if err == nil && l.isLock(filepath.Join(dir, "root"), to) {
				return true, nil
			}
		}
	}
	return false, nil
}

// isLock tells whether a file that a process has open is the instance's lock: beside it, as the process sees it, is the
// instance's name. A lock file that was removed could be anybody's, and counts as this instance's.
func (l *Leftover) isLock(root, file string) bool {
	switch filepath.Base(file) {
	case "lock (deleted)":
		return true
	case "lock":
		id, err := os.ReadFile(filepath.Join(root, filepath.Dir(file), "instance"))
		return err == nil && strings.TrimSpace(string(id)) == l.Instance
	}
	return false
}

// Clean removes leftovers and tells which. Sandboxes that go on and could be taken over (see [Leftover.Kept]) are only
// removed when kept says so. An instance that somebody has begun to serve meanwhile is left alone. Files in data folders
// stay: the next server on such a folder sees that its sandboxes are gone.
func Clean(ctx context.Context, o Options, kept bool) (removed []Leftover, err error) {
	found, err := Leftovers(o)
	if err != nil {
		return nil, err
	}
	for _, l := range found {
		if l.Kept() && !kept {
			continue
		}
		done, err := l.remove(ctx, o)
		if err != nil {
			return removed, fmt.Errorf("instance %s: %w", l.Instance, err)
		}
		if done {
			removed = append(removed, l)
		}
	}
	return removed, nil
}

// remove removes one instance's leftovers. While it does, no server can begin on the data folder.
func (l *Leftover) remove(ctx context.Context, o Options) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	if l.Folder {
		lock, lockErr := flock.Try(filepath.Join(l.DataDir, "lock"))
		if errors.Is(lockErr, flock.ErrHeld) {
			return false, nil
		}
		if lockErr != nil {
			return false, lockErr
		}
		defer func() { err = errors.Join(err, lock.Unlock()) }()
	} else if served, err := l.look(); served || err != nil {
		return false, err
	}
	if err := cgroup.RemoveAll(ctx, l.Instance); err != nil {
		return false, err
	}
	if l.RunDir != "" {
		if err := os.RemoveAll(l.RunDir); err != nil {
			return false, err
		}
	}
	if l.Folder {
		return true, nil // the claim stays the folder's
	}
	_, err = idrange.Forget(ctx, o.IDRanges, l.Instance, func() bool {
		served, err := l.look()
		return served || err != nil || l.Folder
	})
	return true, err
}

// tryLeftovers reports leftovers and the command that removes them.
func tryLeftovers(_ context.Context, m *machine) (string, error) {
	found, err := Leftovers(m.opts)
	if err != nil {
		return "", err
	}
	found = slices.DeleteFunc(found, Leftover.Bare)
	if len(found) == 0 {
		return "nothing of instances that have ended", nil
	}
	var parts []string
	command := "dsec doctor --clean"
	for _, l := range found {
		parts = append(parts, l.String())
	}
	if !slices.ContainsFunc(found, func(l Leftover) bool { return !l.Kept() }) {
		command += " --kept"
	}
	if m.opts.IDRanges != "" {
		command += " --id-ranges " + m.opts.IDRanges
	}
	if i := slices.IndexFunc(found, Leftover.Kept); i >= 0 {
		command += "   # or take over what goes on: dsec dev --data " + found[i].DataDir
	}
	return strings.Join(parts, "; "), &limitedError{command}
}

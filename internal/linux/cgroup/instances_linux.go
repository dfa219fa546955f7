package cgroup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// InstanceGroups are what one instance has in the hierarchies.
type InstanceGroups struct {
	Instance  string
	Processes int // how many live in them, as far as our pid namespace shows
}

// Instances finds the groups of all instances of this machine, sorted by instance.
func Instances() ([]InstanceGroups, error) {
	mounts, err := systemMounts()
	if err != nil {
		return nil, err
	}
	r, err := openRoots(mounts)
	if err != nil {
		return nil, err
	}
	found, err := instancesIn(r.at)
	return found, errors.Join(err, r.at.close())
}

func instancesIn(in Dirs) ([]InstanceGroups, error) {
	members := map[string]map[int]bool{}
	for _, h := range in.all() {
		names, err := subgroups(h.fd, ".")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", h.name, err)
		}
		for _, name := range names {
			id, ours := strings.CutPrefix(name, "dsec-")
			if !ours || checkName(id) != nil {
				continue
			}
			if members[id] == nil {
				members[id] = map[int]bool{}
			}
			if err := addMembers(h.fd, name, members[id]); err != nil {
				return nil, fmt.Errorf("%s: %w", h.name, err)
			}
		}
	}
	var list []InstanceGroups
	for id, pids := range members {
		list = append(list, InstanceGroups{Instance: id, Processes: len(pids)})
	}
	slices.SortFunc(list, func(a, b InstanceGroups) int { return strings.Compare(a.Instance, b.Instance) })
	return list, nil
}

// addMembers adds who lives in a group and below it. Groups may go while it looks.
func addMembers(dir int, path string, to map[int]bool) error {
	pids, err := processes(dir, path)
	if err != nil && !isGone(err) {
		return err
	}
	for _, pid := range pids {
		to[pid] = true
	}
	names, err := subgroups(dir, path)
	if err != nil && !isGone(err) {
		return err
	}
	for _, name := range names {
		if err := addMembers(dir, path+"/"+name, to); err != nil {
			return err
		}
	}
	return nil
}

// Package account finds out who a command runs as and what login would put into its environment.
//
// What it reads is a tenant's: /etc/passwd and /etc/group of a sandbox may be missing, damaged or hostile. Nothing in
// them makes it fail; lines that aren't entries are skipped, and ids that a sandbox doesn't have are refused. All
// functions are pure; an [Account] isn't changed after it was made, so it may be shared.
package account

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// maxID is the highest user and group id of a sandbox: its user namespace maps 65,536 of them.
const maxID = 65535

// Account is who a command runs as, as login would find out.
type Account struct {
	UID, GID int
	Groups   []uint32 // supplementary, GID among them
	Name     string   // empty: a numeric id without an entry
	Home     string
	Shell    string
}

// Files is the content of a sandbox's /etc/passwd and /etc/group.
type Files struct{ Passwd, Group []byte }

// entry is one line of a file of colons.
type entry [][]byte

func (e entry) number(i int) (int, bool) {
	n, err := strconv.Atoi(string(e[i]))
	return n, err == nil && n >= 0 && n <= maxID
}

// find returns the first entry with at least n fields for which match holds.
func find(file []byte, n int, match func(entry) bool) entry {
	for line := range bytes.SplitSeq(file, []byte{'\n'}) {
		if e := entry(bytes.Split(line, []byte{':'})); len(e) >= n && match(e) {
			return e
		}
	}
	return nil
}

const (
	passwdFields = 7 // name:x:uid:gid:comment:home:shell
	groupFields  = 4 // name:x:gid:members
)

// Lookup finds "", name, uid, name:group or uid:gid. Empty is root. A uid without an entry has group 0 and home "/".
func (f *Files) Lookup(who string) (*Account, error) {
	user, group, withGroup := strings.Cut(who, ":")
	if user == "" {
		user = "0"
	}
	acc, err := f.user(user)
	if err != nil {
		return nil, err
	}
	if withGroup {
		if acc.GID, err = f.groupID(group); err != nil {
			return nil, err
		}
		acc.Groups = []uint32{uint32(acc.GID)}
		return acc, nil
	}
	acc.Groups = f.memberships(acc)
	return acc, nil
}

func (f *Files) user(user string) (*Account, error) {
	e := find(f.Passwd, passwdFields, func(e entry) bool { return string(e[0]) == user })
	if e == nil && user == "root" {
		user = "0" // in any image, also one without accounts
	}
	id, err := strconv.Atoi(user)
	if e == nil && err == nil {
		if id < 0 || id > maxID {
			return nil, api.FieldError(api.CodeNoSuchUser, "user", "ids in a sandbox go from 0 to 65535", "uid %d is out of range", id)
		}
		e = find(f.Passwd, passwdFields, func(e entry) bool { n, ok := e.number(2); return ok && n == id })
		if e == nil {
			acc := &Account{UID: id, Home: "/"}
			if id == 0 {
				acc.Name, acc.Home = "root", "/root"
			}
			return acc, nil
		}
	}
	if e == nil {
		return nil, api.FieldError(api.CodeNoSuchUser, "user", "use a numeric uid, or a name from the sandbox's /etc/passwd", "no user %q in the sandbox", user)
	}
	uid, ok := e.number(2)
	gid, ok2 := e.number(3)
	if !ok || !ok2 {
		return nil, api.FieldError(api.CodeNoSuchUser, "user", "ids in a sandbox go from 0 to 65535", "user %q has ids %q and %q", user, e[2], e[3])
	}
	acc := &Account{UID: uid, GID: gid, Name: string(e[0]), Home: string(e[5]), Shell: string(e[6])}
	if acc.Home == "" {
		acc.Home = "/"
	}
	return acc, nil
}

func (f *Files) groupID(group string) (int, error) {
	e := find(f.Group, groupFields, func(e entry) bool { return string(e[0]) == group })
	if e != nil {
		if gid, ok := e.number(2); ok {
			return gid, nil
		}
	}
	gid, err := strconv.Atoi(group)
	if err != nil || gid < 0 || gid > maxID {
		return 0, api.FieldError(api.CodeNoSuchUser, "user", "use a numeric gid, or a name from the sandbox's /etc/group", "no group %q in the sandbox", group)
	}
	return gid, nil
}

// maxGroups bounds the supplementary groups: the kernel's own limit is the same.
const maxGroups = 65536

// memberships lists the account's groups, its own first.
func (f *Files) memberships(acc *Account) []uint32 {
	groups := []uint32{uint32(acc.GID)}
	if acc.Name == "" {
		return groups
	}
	seen := map[int]bool{acc.GID: true}
	name := []byte(acc.Name)
	for line := range bytes.SplitSeq(f.Group, []byte{'\n'}) {
		e := entry(bytes.Split(line, []byte{':'}))
		if len(e) < groupFields {
			continue
		}
		gid, ok := e.number(2)
		if !ok || seen[gid] || len(groups) == maxGroups {
			continue
		}
		for member := range bytes.SplitSeq(e[3], []byte{','}) {
			if bytes.Equal(bytes.TrimSpace(member), name) {
				seen[gid] = true
				groups = append(groups, uint32(gid))
				break
			}
		}
	}
	return groups
}

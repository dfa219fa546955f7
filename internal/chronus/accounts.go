package chronus

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/dsec-io/dsec/api"
)

// maxID is the highest user and group id of a sandbox: its user namespace maps 65,536 of them.
const maxID = 65535

// account is who a command runs as, as login would find out. Its slices aren't changed after it was made.
type account struct {
	uid, gid int
	groups   []uint32 // supplementary, gid among them
	name     string   // empty: a numeric id without an entry
	home     string
	shell    string
}

// accounts is what a sandbox's /etc/passwd and /etc/group say. Both may be missing or damaged: lines that aren't
// entries are skipped.
type accounts struct{ passwd, group []byte }

// entry is one line of a file of colons.
type entry [][]byte

func (e entry) number(i int) (int, bool) {
	n, err := strconv.Atoi(string(e[i]))
	return n, err == nil && n >= 0 && n <= maxID
}

// find returns the first entry with at least fields fields for which match holds.
func find(file []byte, fields int, match func(entry) bool) entry {
	for line := range bytes.SplitSeq(file, []byte{'\n'}) {
		if e := entry(bytes.Split(line, []byte{':'})); len(e) >= fields && match(e) {
			return e
		}
	}
	return nil
}

const (
	passwdFields = 7 // name:x:uid:gid:comment:home:shell
	groupFields  = 4 // name:x:gid:members
)

// lookup finds "", name, uid, name:group or uid:gid. Empty is root. A uid without an entry has group 0 and home "/".
func (a *accounts) lookup(who string) (*account, error) {
	user, group, withGroup := strings.Cut(who, ":")
	if user == "" {
		user = "0"
	}
	acc, err := a.user(user)
	if err != nil {
		return nil, err
	}
	if withGroup {
		if acc.gid, err = a.groupID(group); err != nil {
			return nil, err
		}
		acc.groups = []uint32{uint32(acc.gid)}
		return acc, nil
	}
	acc.groups = a.memberships(acc)
	return acc, nil
}

func (a *accounts) user(user string) (*account, error) {
	e := find(a.passwd, passwdFields, func(e entry) bool { return string(e[0]) == user })
	if e == nil && user == "root" {
		user = "0" // in any image, also one without accounts
	}
	id, err := strconv.Atoi(user)
	if e == nil && err == nil {
		if id < 0 || id > maxID {
			return nil, api.FieldError(api.CodeNoSuchUser, "user", "ids in a sandbox go from 0 to 65535", "uid %d is out of range", id)
		}
		e = find(a.passwd, passwdFields, func(e entry) bool { n, ok := e.number(2); return ok && n == id })
		if e == nil {
			acc := &account{uid: id, home: "/"}
			if id == 0 {
				acc.name, acc.home = "root", "/root"
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
	acc := &account{uid: uid, gid: gid, name: string(e[0]), home: string(e[5]), shell: string(e[6])}
	if acc.home == "" {
		acc.home = "/"
	}
	return acc, nil
}

func (a *accounts) groupID(group string) (int, error) {
	e := find(a.group, groupFields, func(e entry) bool { return string(e[0]) == group })
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
func (a *accounts) memberships(acc *account) []uint32 {
	groups := []uint32{uint32(acc.gid)}
	if acc.name == "" {
		return groups
	}
	seen := map[int]bool{acc.gid: true}
	name := []byte(acc.name)
	for line := range bytes.SplitSeq(a.group, []byte{'\n'}) {
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

package erofs

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The types of files, as in a mode of stat(2).
const (
	TypeMask = 0o170000
	Dir      = 0o040000
	Regular  = 0o100000
	Link     = 0o120000
	FIFO     = 0o010000
)

// The bounds of a tree's parts.
const (
	MaxName   = 255
	MaxTarget = 4095
	MaxXattrs = 64 << 10 // of one file, names and values together
)

// Node is a file. A node that several names lead to is a file with hard links.
type Node struct {
	Mode     uint32 // type and permissions, as in stat(2)
	UID, GID uint32
	Sec      int64 // of the last change, with Nsec
	Nsec     uint32
	Xattrs   map[string]string // by full name, such as "security.capability"

	Size     int64            // of a regular file
	Offset   int64            // of a regular file's bytes in what Write reads from
	Target   string           // of a symbolic link
	Children map[string]*Node // of a directory

	place place
}

// place is where a node goes in the image that is being written.
type place struct {
	nid    uint64
	links  uint32
	number uint32
	inline bool   // what it holds is beside the inode
	block  uint32 // else the first block of it
	xattrs []byte
	size   int64
}

// Type is the node's type.
func (n *Node) Type() uint32 { return n.Mode & TypeMask }

// IsDir tells whether the node is a directory.
func (n *Node) IsDir() bool { return n.Type() == Dir }

// The numbers that stand for the beginnings of attribute names. The names of ACLs are whole.
func attributeIndex(name string) (index byte, rest string, ok bool) {
	for _, p := range []struct {
		index  byte
		prefix string
	}{{2, "system.posix_acl_access"}, {3, "system.posix_acl_default"}, {1, "user."}, {4, "trusted."}, {6, "security."}} {
		rest, found := strings.CutPrefix(name, p.prefix)
		whole := p.index == 2 || p.index == 3
		if found && whole == (rest == "") {
			return p.index, rest, true
		}
	}
	return 0, "", false
}

// CheckXattr tells whether an attribute can be in an image.
func CheckXattr(name, value string) error {
	_, rest, ok := attributeIndex(name)
	switch {
	case !ok:
		return fmt.Errorf("attribute %q is of an unknown kind", name)
	case len(rest) > MaxName || strings.ContainsRune(rest, 0):
		return fmt.Errorf("attribute %.40q has a bad name", name)
	case len(value) > MaxXattrs-1024:
		return fmt.Errorf("attribute %q has %d bytes, over %d", name, len(value), MaxXattrs-1024)
	}
	return nil
}

// encodeXattrs makes what follows an inode with attributes.
func encodeXattrs(attrs map[string]string) ([]byte, error) {
	if len(attrs) == 0 {
		return nil, nil
	}
	b := make([]byte, 12) // the header: no filter, nothing shared
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		value := attrs[name]
		if err := CheckXattr(name, value); err != nil {
			return nil, err
		}
		index, rest, _ := attributeIndex(name)
		b = append(b, byte(len(rest)), index, byte(len(value)), byte(len(value)>>8))
		b = append(append(b, rest...), value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	if len(b) > MaxXattrs {
		return nil, fmt.Errorf("attributes have %d bytes, over %d", len(b), MaxXattrs)
	}
	return b, nil
}

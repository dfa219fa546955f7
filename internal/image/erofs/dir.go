package erofs

import (
	"encoding/binary"
	"slices"
)

// entryNames are the names in a directory, in the order of their bytes, in which the kernel looks them up.
func entryNames(n *Node) []string {
	names := make([]string, 0, len(n.Children)+2)
	names = append(names, ".", "..")
	for name := range n.Children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// dirBlocks splits names into blocks.
func dirBlocks(names []string) [][]string {
	var blocks [][]string
	first, used := 0, 0
	for i, name := range names {
		need := entrySize + len(name)
		if used+need > blockSize {
			blocks = append(blocks, names[first:i])
			first, used = i, 0
		}
		used += need
	}
	return append(blocks, names[first:])
}

// dirSize is the length of a directory: only its last block isn't whole.
func dirSize(n *Node) int64 {
	blocks := dirBlocks(entryNames(n))
	last := 0
	for _, name := range blocks[len(blocks)-1] {
		last += entrySize + len(name)
	}
	return int64(len(blocks)-1)*blockSize + int64(last)
}

// dirContent is what a directory holds. All below it must have their places.
func (im *writer) dirContent(n *Node) []byte {
	out := make([]byte, 0, n.place.size)
	le := binary.LittleEndian
	for _, names := range dirBlocks(entryNames(n)) {
		for len(out)%blockSize != 0 {
			out = append(out, 0)
		}
		at := len(names) * entrySize
		for _, name := range names {
			child := n.Children[name]
			switch name {
			case ".":
				child = n
			case "..":
				child = im.parent[n]
			}
			out = le.AppendUint64(out, child.place.nid)
			out = le.AppendUint16(out, uint16(at))
			out = append(out, entryType(child.Type()), 0)
			at += len(name)
		}
		for _, name := range names {
			out = append(out, name...)
		}
	}
	return out
}

func entryType(t uint32) byte {
	switch t {
	case Regular:
		return 1
	case Dir:
		return 2
	case FIFO:
		return 5
	case Link:
		return 7
	}
	return 0
}

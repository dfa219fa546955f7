package erofs

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
)

const (
	blockBits = 12
	blockSize = 1 << blockBits
	inodeSize = 64
	slotSize  = 32 // inodes are numbered by such slots
	entrySize = 12 // a directory's entry without its name

	// fsck.erofs 1.5 reads the header of the attributes behind every inode, whether it has any or not, and takes it for
	// damage when the image ends before.
	xattrHeader = 12

	maxInline     = blockSize - 2*inodeSize // of a directory or link beside its inode
	maxInlineFile = 2048                    // of a regular file: larger ones are read faster from blocks
)

// errTooLarge says that an image would need more blocks than its format can number.
var errTooLarge = errors.New("image is too large")

// writer is one image on its way.
type writer struct {
	out    *bufio.Writer
	data   io.ReaderAt
	nodes  []*Node // in the order of their inodes, each once
	parent map[*Node]*Node
	blocks uint64 // given out so far, the superblock's included
	meta   uint64 // bytes of the inodes' part given out so far
	buf    []byte
}

// Write writes the image of a tree. The bytes of regular files are read from data.
func Write(w io.Writer, root *Node, data io.ReaderAt) error {
	if !root.IsDir() {
		return errors.New("the root isn't a directory")
	}
	im := &writer{
		out: bufio.NewWriterSize(w, 1<<20), data: data, parent: map[*Node]*Node{root: root},
		blocks: 1, meta: inodeSize, // inode numbers begin above 0, which readers of directories take for deleted
		buf: make([]byte, 256<<10),
	}
	if err := reset(root, 0); err != nil {
		return err
	}
	if err := im.place(root, ""); err != nil {
		return err
	}
	metaBlocks := (im.meta + xattrHeader + blockSize - 1) >> blockBits
	if im.blocks+metaBlocks > math.MaxUint32 || uint64(len(im.nodes)) > math.MaxUint32 {
		return errTooLarge
	}
	if err := im.writeSuper(root, uint32(im.blocks), uint32(im.blocks+metaBlocks)); err != nil {
		return err
	}
	for _, n := range im.nodes {
		if !n.place.inline {
			if err := im.writeContent(n, true); err != nil {
				return err
			}
		}
	}
	if err := im.writeInodes(metaBlocks << blockBits); err != nil {
		return err
	}
	return im.out.Flush()
}

// maxDepth is how deep a tree may be: a path of the kernel's has no more parts.
const maxDepth = 2048

// reset drops what an earlier writer has noted.
func reset(n *Node, depth int) error {
	if depth > maxDepth {
		return errors.New("the tree is too deep")
	}
	n.place = place{}
	for _, child := range n.Children {
		if err := reset(child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// place gives a node and all below it their places. Further names of a node only count.
func (im *writer) place(n *Node, name string) error {
	if n.place.links > 0 {
		n.place.links++
		return nil
	}
	n.place.links = 1
	if n.IsDir() {
		n.place.links = 2
	}
	im.nodes = append(im.nodes, n)
	n.place.number = uint32(len(im.nodes))
	var err error
	if n.place.xattrs, err = encodeXattrs(n.Xattrs); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := im.placeContent(n); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, child := range slices.Sorted(maps.Keys(n.Children)) {
		c := n.Children[child]
		if c.IsDir() {
			if im.parent[c] != nil {
				return fmt.Errorf("%s/%s: a directory has two names", name, child)
			}
			im.parent[c] = n
			n.place.links++
		}
		if err := im.place(c, name+"/"+child); err != nil {
			return err
		}
	}
	return nil
}

// placeContent decides where what a node holds goes, and where its inode does.
func (im *writer) placeContent(n *Node) error {
	inlineMax := int64(maxInline)
	switch n.Type() {
	case Dir:
		n.place.size = dirSize(n)
	case Link:
		if n.place.size = int64(len(n.Target)); n.place.size == 0 || n.place.size > MaxTarget {
			return fmt.Errorf("link target of %d bytes", n.place.size)
		}
	case Regular:
		n.place.size, inlineMax = n.Size, maxInlineFile
	case FIFO:
	default:
		return fmt.Errorf("mode %#o is of an unknown type", n.Mode)
	}
	size := n.place.size
	n.place.inline = size <= inlineMax
	tail := uint64(0)
	if n.place.inline {
		tail = uint64(size)
	} else {
		if im.blocks > math.MaxUint32 {
			return errTooLarge
		}
		n.place.block = uint32(im.blocks)
		im.blocks += uint64(size+blockSize-1) >> blockBits
	}
	body := inodeSize + uint64(len(n.place.xattrs))
	if off := (im.meta + body) % blockSize; off+tail > blockSize {
		im.meta = alignUp(im.meta+blockSize-off, inodeSize) // what is beside an inode lies in one block
	}
	n.place.nid = im.meta / slotSize
	im.meta = alignUp(im.meta+body+tail, inodeSize)
	return nil
}

func alignUp(v, to uint64) uint64 { return (v + to - 1) / to * to }

// writeSuper writes the first block.
func (im *writer) writeSuper(root *Node, metaBlock, blocks uint32) error {
	b := make([]byte, blockSize)
	s := b[1024:]
	le := binary.LittleEndian
	le.PutUint32(s[0:], 0xe0f5e1e2)
	le.PutUint32(s[8:], 1|2) // the superblock has a checksum, and times are those of the last change
	s[12] = blockBits
	le.PutUint16(s[14:], uint16(root.place.nid)) // the first inode of all
	le.PutUint64(s[16:], uint64(len(im.nodes)))
	le.PutUint32(s[36:], blocks)
	le.PutUint32(s[40:], metaBlock)
	le.PutUint32(s[4:], ^crc32.Checksum(s, crc32.MakeTable(crc32.Castagnoli)))
	_, err := im.out.Write(b)
	return err
}

// writeContent writes what a node holds, filled up to whole blocks if padded.
func (im *writer) writeContent(n *Node, padded bool) error {
	var err error
	switch n.Type() {
	case Dir:
		_, err = im.out.Write(im.dirContent(n))
	case Link:
		_, err = im.out.WriteString(n.Target)
	case Regular:
		var written int64
		src := io.NewSectionReader(im.data, n.Offset, n.Size)
		written, err = io.CopyBuffer(struct{ io.Writer }{im.out}, struct{ io.Reader }{src}, im.buf)
		if err == nil && written != n.Size {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil && padded {
		err = im.zeros(-uint64(n.place.size) % blockSize)
	}
	return err
}

func (im *writer) zeros(n uint64) error {
	var zero [blockSize]byte
	for n > 0 {
		k := min(n, blockSize)
		if _, err := im.out.Write(zero[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// writeInodes writes the inodes' part, which takes size bytes.
func (im *writer) writeInodes(size uint64) error {
	at := uint64(0)
	for _, n := range im.nodes {
		p := &n.place
		if err := im.zeros(p.nid*slotSize - at); err != nil {
			return err
		}
		if _, err := im.out.Write(inode(n)); err != nil {
			return err
		}
		if _, err := im.out.Write(p.xattrs); err != nil {
			return err
		}
		at = p.nid*slotSize + inodeSize + uint64(len(p.xattrs))
		if p.inline {
			if err := im.writeContent(n, false); err != nil {
				return err
			}
			at += uint64(p.size)
		}
	}
	return im.zeros(size - at)
}

// inode is a node's inode, always in the large form.
func inode(n *Node) []byte {
	b := make([]byte, inodeSize)
	le := binary.LittleEndian
	format := uint16(1)
	if n.place.inline && n.place.size > 0 {
		format |= 2 << 1
	}
	le.PutUint16(b[0:], format)
	if k := len(n.place.xattrs); k > 0 {
		le.PutUint16(b[2:], uint16((k-12)/4+1))
	}
	le.PutUint16(b[4:], uint16(n.Mode))
	le.PutUint64(b[8:], uint64(n.place.size))
	le.PutUint32(b[16:], n.place.block)
	le.PutUint32(b[20:], n.place.number)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.Sec))
	le.PutUint32(b[40:], n.Nsec)
	le.PutUint32(b[44:], n.place.links)
	return b
}

// Package erofs writes EROFS file systems: uncompressed, of one file, and the same bytes for the same tree.
//
// A tree is [Node] values in memory; what the files hold comes from one [io.ReaderAt]. Memory grows with the number of
// files, never with what they hold. Nothing is looked up in a file system on the way, so names in a tree can lead nowhere.
//
// The image is the superblock, then the blocks of files and large directories in the order of the tree, then the inodes,
// with small files, directories, links and extended attributes beside them. Every kernel since 5.4 can mount it.
//
// A tree must not be changed while it is written. [Write] keeps its notes in the nodes, so one tree is written by one
// goroutine at a time.
package erofs

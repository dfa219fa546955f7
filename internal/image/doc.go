// Package image finds images in the stores of this machine and gives out mounts of them.
//
// An image is a folder NAME with image.erofs, the file system, and config.json, a [Config]. Stores are folders of
// images; the first that has a name wins, and none of them is ever written to here.
//
// An image is mounted once, however many use it: one superblock, on the file itself and not on a loop device, held as
// a detached mount that no path leads to. What a sandbox gets is a clone of that mount, whose owners are mapped into
// the sandbox's user namespace. The mount goes with the last [Image] that is closed; clones that live on keep the
// superblock as long as they need it. An image that was replaced on disk is mounted anew for those that open it from
// then on.
//
// Files are opened below their store with os.Root, so that neither a name nor a link leads out of it.
//
// A Store and an Image are safe for concurrent use. Lock order: Image.mu before Store.mu.
package image

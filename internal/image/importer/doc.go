// Package importer makes images of what people have: a tar of a file system, an OCI layout, what `docker save` writes,
// each plain or compressed with gzip or zstd.
//
// Nothing is ever unpacked. Names are resolved in a tree in memory, as a process whose root it were would see them; what
// files hold goes one after the other into a file without a name, and from there into the image. So a hostile archive has
// no file system to climb out into, no file of it ever belongs to anybody or is executable on the host, and what a crash
// leaves is a folder that no image can be called like, which the next start removes. Memory grows with the number of files
// (see [Config]), never with what they hold.
//
// The same input gives the same bytes. An image appears whole, by a rename, after everything was written out.
//
// An Importer is safe for concurrent use, and is the only one that writes to its folder.
package importer

// Package files works on the files of sandboxes, from a process that never enters one.
//
// Every path is resolved, every file opened, made, renamed and removed by a helper that has joined the sandbox's user and
// mount namespaces and taken the ids of the user who asks. So what a path means, where a link leads and who may do what
// is decided by the kernel as it decides for any program of the sandbox: there is nothing to escape to, because the
// helper's root is the sandbox's. What a helper opens is left here as a descriptor, and content flows through descriptors
// of regular files and directories only.
//
// What it promises: a file is replaced as a whole or not at all; only directories that a call makes itself belong to its
// user; special files are refused and never waited for; memory doesn't grow with files, directories or archives; every
// failure is a typed error of package api, and a listing that can't be finished is an error, never a shorter one.
//
// One rule for links: a link in the middle of a path is followed; one at its end is followed by read, write, list, stat,
// chmod and chown, but not by remove, rename and symlink, nor where no_follow is asked for.
//
// A [Server] is safe for concurrent use and has no locks that a caller can see.
package files

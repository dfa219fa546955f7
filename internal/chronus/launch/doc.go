// Package launch brings commands to life inside sandboxes, from a process that never enters one.
//
// A command is born in two vforked steps. The helper H joins the command's cgroups and the sandbox's namespaces, sheds
// every descriptor but the command's own, and takes limits, capabilities, the seccomp filter and the user's ids; then it
// clones the command C, which has nothing left to do but exec. Smaller helpers open a file or a terminal inside and
// leave its descriptor here.
//
// What it promises: a command that [Launcher.Spawn] returns an error for never ran, and the error says why in the terms of
// package api; a command is in its cgroups, has exactly its descriptors and its user's rights before its first
// instruction; a tenant who stops a helper delays nobody but himself. The order of the steps is a proved one and each is
// where it is for a reason.
//
// A Launcher is safe for concurrent use. It holds no lock that a caller can see.
package launch

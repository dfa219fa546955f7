// Package spawn starts processes as lists of raw system calls that a vforked child runs in registers only.
//
// A child made with CLONE_VM|CLONE_VFORK shares the memory of this program, so it costs a quarter of a fork, but it must
// not run Go: no stack, no heap, no scheduler. A [Script] is therefore built beforehand in ordinary Go and then
// interpreted by a few lines of assembly. A script may clone a second child that runs a script of its own
// ([Script.Clone]); that is how a process is born inside a sandbox whose namespaces its parent has just entered.
//
// Three rules hold whatever the caller does, because breaking any of them lets one tenant stop or kill everybody:
//
//   - The Go scheduler's P is released while the child runs. A thread that sits in vfork with its P would block the
//     garbage collector's stop-the-world, and with it every timer, for as long as a tenant keeps the child stopped.
//   - CLONE_VFORK is always set. The kernel's OOM killer spares this program, although the child in the tenant's
//     memory cgroup shares its memory, only because the child is in vfork.
//   - The watchdog kills the inner child before the outer one: killing the outer one first would end that vfork state.
//
// A Script, and the Steps made from it, belong to one goroutine at a time; [Watch] may be shared. Run keeps everything a
// script refers to alive until the child has gone. There are no locks that a caller can see.
package spawn

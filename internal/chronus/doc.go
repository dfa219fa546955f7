// Package chronus runs commands in sandboxes. It is the inside of a shard (the unprivileged process that owns the user
// namespaces of up to 128 sandboxes of one project) and knows boxes, processes and sessions.
//
// A command is born in two vforked steps. The helper H joins the command's cgroups and the sandbox's namespaces,
// sheds every descriptor but the command's own, and takes limits, capabilities, the seccomp filter and the user's ids;
// then it clones the command C, which has nothing left to do but exec. The shard itself never enters a sandbox, never
// opens a path that a tenant could have made, and parses of a sandbox's files only /etc/passwd and /etc/group, bounded.
//
// A short command's output stays in its pipes until it has ended, and leaves no trace anywhere. Anything longer, and
// everything that is to be kept, becomes a process: its output is spliced from the pipes into journals (memfds), the
// keeper holds pipes, journals and the pidfd, and readers take their bytes from the journal by offset. Output is never
// read into this program before it is stored, so a shard killed at any instruction loses none of it; the next shard
// goes on where the journal ends.
//
// What it promises: bytes are exact; output is complete before an end is reported; a time-out and a cancel end every
// process that the command has started, also those with a session of their own (the command's whole cgroup is
// killed); a command that provably didn't start is told by a typed error; memory doesn't grow with output, readers or
// the number of commands run. What it doesn't: a command whose shard dies in the microseconds between its birth and
// the keeper's knowledge is lost, and so is a short command in flight; the caller sees the connection end.
//
// Everything exported is safe for concurrent use. Lock order: Shard.mu, box.mu, session.mu, process.mu, journal.mu. No
// lock is held over a spawn or over a wait.
package chronus

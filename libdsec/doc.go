// Package libdsec is DSec's Go SDK: it makes sandboxes and runs commands in them.
//
// A [Client] speaks REST for state and one multiplexed Aether connection, made at the first command and made again when
// it breaks, for everything that streams. A [Sandbox] is a handle; a [Process] is a command that runs in it.
//
// What it promises:
//   - Output is byte-exact and complete before an exit status is reported. Streaming takes constant memory.
//   - A failure of DSec is an [api.Error] (found with [errors.AsType] or [IsCode]); how a command ended is data in a
//     [Result], never a Go error. A command that didn't start is an error whose code says why.
//   - Nothing is repeated blindly: a request is sent again only when the failure proves that nothing ran.
//   - A [Process] whose connection breaks goes on where it was: by offset, nothing lost and nothing twice. What the far
//     side no longer has is reported as a gap.
//   - When the context of [Sandbox.Exec] or of a started process that isn't detached ends, the whole tree of the command
//     is killed.
//
// All types are safe for concurrent use unless said otherwise. Lock order: Client.mu is never held together with a lock
// of a Process.
package libdsec

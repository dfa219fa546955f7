// Package pause lets one sandbox stand still and go on: who is at work in it, in what order that happens, and what its
// own time is.
//
// A [Gate] knows who is inside: everything that makes a process in the sandbox, or visits its files or network, enters
// first and leaves afterwards. A pause closes the gate, waits until nobody is inside, and only then has the sandbox
// frozen: what joins a frozen sandbox would stop there together with a thread of this process, so nothing ever does. A
// pause that can't come to its end is taken back whole.
//
// The sandbox's time stands still from the moment it is being frozen until it is thawed. Time-outs are timers of that time
// ([Gate.AfterFunc]). It outlives this process in a [Kept].
//
// What the kernel says counts: whoever takes a sandbox over tells the gate whether it is frozen.
package pause

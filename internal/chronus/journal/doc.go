// Package journal stores what a process writes, out of reach of this program's death.
//
// A [Journal] is a memfd that [Pump] fills by splice, so that no byte is ever between "taken from the process" and
// "stored": the file's size is the only counter, and whoever holds the descriptors of a journal and its [Source] can go
// on after a kill at any instruction. A journal keeps the first and the last part of the output, in constant memory,
// and gives it out by offset; it says exactly what is missing.
//
// A reader never slows the process, unless the journal is lossless: then the process waits for the slowest. One Pump
// runs per journal. Everything else is safe for concurrent use. Journal.mu is a leaf lock.
package journal

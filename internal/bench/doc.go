// Package bench measures a DSec server as its clients meet it: over HTTP, from a process of its own, with other
// runtimes doing the same steps in between.
//
// A run is a number of rounds. In each round every contender (DSec with pools, without, crun, …) does a block of
// operations at the same concurrency, one contender after the other, so that a machine that gets busier gets busier for
// all of them. What is reported comes from all blocks together; a rate is operations by the time of the blocks.
//
// Everything here but [Document] is for one goroutine.
package bench

// Package f32 has the loops over float32 that learning spends its time in: matrix products, rows added to rows, tanh
// and its like.
//
// Every loop has a portable form; on amd64 there is one for AVX2 and, of the products, one for AVX-512, chosen by the
// processor at run time. [Backend] says which. They are in assembly, not in simd/archsimd: a tile of a product wants
// all its sums in registers, and Go 1.26 spills every second of them (measured: 40 instead of 100 GFLOP/s). It also
// makes them independent of GOEXPERIMENT and free of its trap (registers left dirty by a preemption): assembly isn't
// preempted, and clears the upper halves before it returns.
//
// The forms differ in the order of additions and in fused multiplications, so that results of two backends agree
// within rounding, while one backend always gives the same bits for the same input.
//
// A [Workspace] belongs to one goroutine.
package f32

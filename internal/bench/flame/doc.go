// Package flame draws flame graphs from profiles of Go programs and from what perf recorded.
//
// A flame graph shows every function as a box as wide as its share of the samples, above the one that called it.
package flame

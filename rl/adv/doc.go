// Package adv computes advantages: GAE, and V-trace in the two forms that PufferLib has had.
//
// Everything is time-major, [step][column], and indexed by what caused it: Rewards[t] is what the action at t earned,
// Dones[t] says whether the episode ended with it, and Values[t] is the value of the observation that it was chosen
// on. (PufferLib stores rewards and flags a step later and so loses the last step of every row; here no step is lost,
// because Next has the values after the last one.) With A after the end being 0,
//
//	n    = 1 - Dones[t]
//	V'   = Values[t+1], or Next after the last step
//	GAE      δ =    Rewards[t] + γ·V'·n - Values[t]
//	VTrace3  δ = ρ·(Rewards[t] + γ·V'·n - Values[t])
//	VTrace4  δ =  ρ·Rewards[t] + γ·V'·n - Values[t]
//	A[t] = δ + γ·λ·c·n·A[t+1]
//
// where ρ and c are the importance, cut at RhoMax and CMax; for GAE both are 1. An episode that was cut off, not over,
// is a done step with a [Cut], which puts γ·V(final observation) where γ·V' would have been.
//
// There are loops for AVX2 and AVX-512 in builds with GOEXPERIMENT=simd for amd64, chosen at run time; any other build
// has the portable one. All agree with [Reference], which computes in float64, within 4·10⁻⁶·(1 + the largest |A|) for
// γ ≤ 0.999 and up to 4,096 steps.
//
// With the experiment, build for GOAMD64=v1 or v2. At v3 and v4 the compiler mixes fused instructions into scalar code;
// an asynchronous preemption leaves the upper halves of the vector registers dirty, and such code then runs 50 to 100
// times slower until they are cleared. The loops clear them after every row, so that the slow time ends within a row.
package adv

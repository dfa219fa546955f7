// Package vec steps many environments: one after another, on several workers, or as they come ready.
//
// All vectors work in place on one set of [env.Buffers] that the learner reads and writes: no observation is copied on
// its way. How the environments are spread over workers never changes what happens in them, because each has its own
// seed; no count has to divide another.
//
//	v, err := vec.NewParallel(maker, vec.Config{Envs: 1024, Workers: 2})
//	err = v.Reset(ctx, seed)
//	for {
//		policy(v.Buffers())       // reads Obs, writes Choices
//		err = v.Step(ctx)         // Rewards, Terminals, Truncations, Final, and the next Obs
//	}
//
// An [Async] gives out blocks of environments as they come ready, so that the policy works on one while others step:
//
//	err := a.Reset(ctx, seed)
//	for {
//		blocks, err := a.Recv(ctx)
//		for _, b := range blocks {
//			policy(b.Buffers)     // rows b.Lo to b.Hi of a.Buffers()
//		}
//		err = a.Send(blocks...)
//	}
//
// Waiting workers sleep; nothing spins. A vector is used by one goroutine at a time. A panic of an environment is an
// error of Step or Recv, after which the vector is good for Close only.
package vec

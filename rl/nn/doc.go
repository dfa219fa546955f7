// Package nn has the policies that package train learns: layers of neurons, with or without an LSTM after them, and a
// head of any mixture of discrete choices and continuous numbers beside the value. Gradients are by hand.
//
//	policy, err := nn.New(nn.Config{Obs: 121, Hidden: []int{128}, Choices: []int{5}}, seed)
//	pass := policy.NewPass()
//	out := pass.Forward(nn.Input{Rows: n, U8: obs}, nil)   // logits, means, value: a row each
//	policy.Sample(out, actions, &rand)                     // draws actions and tells their log-probabilities
//	...
//	stats := policy.PPO(pass.Forward(batch.Input, seq), &batch, ppo, grad)
//	pass.Backward(grad)                                    // adds to the gradients of policy.Params()
//
// Rows of several steps are time-major. An LSTM's state is zeroed before every row that Sequence.Reset marks, in
// Forward and, for what flows back, in Backward: nothing of one episode reaches another.
//
// The value head and the policy head are one matrix, the value its last column. Observations of few nonzeros, which
// maps and one-hot codes have, cost only those.
//
// A Policy's parameters may be read by many passes, one goroutine each, as long as nobody writes; gradients belong to
// one goroutine. The same seed and input give the same bits on the same f32.Backend.
package nn

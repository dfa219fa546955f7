// Package buffer keeps what happened, step by step, until it has been learnt from.
//
// A [Ring] is time-major: [step][column], a column being one agent of one environment. A step is written in two
// halves, around the environments' own:
//
//	s := ring.Begin()          // rows to write observations, actions, log-probabilities and values to, in place
//	...
//	ring.End()                 // after rewards, flags and validity have been written to s
//
// The ring keeps the LSTM's state. Begin copies it to the step, where it's what the step began with; the policy writes
// the next one to ring.H and ring.C; End zeroes it in the columns whose episode ended. So a state never outlives its
// episode, within a rollout as between two (PufferLib 3.0 zeroes states at the start of a rollout only), and training
// goes on from the state that a segment really began with.
//
// Columns are cut into segments, each of one column and of neighbouring steps. Ends of episodes within a segment are
// marked by Reset; Gather fills up what is shorter than the others with invalid rows, so that no number has to divide
// another. Sequences for learning off-policy end where their episode does.
//
// A Ring belongs to one goroutine.
package buffer

// Package admission says whether a sandbox finds room on a machine, and counts who has what of it.
//
// A [Room] promises: what is reserved never adds up to more than the [Capacity]; a refusal names what there is too
// little of, how much was asked for, how much is free and how much there is; and it is refused only what really didn't
// fit at that moment. Promises may add up to many times the machine, because limits are rarely used up; what the machine
// really has left (memory, processes, descriptors) is looked at beside it, and what is being made counts as made.
//
// Everything is safe for concurrent use.
package admission

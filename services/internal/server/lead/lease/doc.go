// Package lease connects the elector of package election to a store, to a clock and to the other servers of the shard.
// Run takes part in the election and runs the leader's code under an Authority. The Authority says until when the code
// may act.
package lease

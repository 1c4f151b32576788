// Package lease connects the elector of package election to a store, to a clock and to the other servers of the shard.
// Run takes part in the election and runs the leader's code under an Authority, which says until when it may act.
package lease

// Package lease puts the elector of package election on a store, on a clock and on links to the other servers of the
// shard. Run takes part in the election and runs the leader's code under an Authority, which says until when it may
// act.
package lease

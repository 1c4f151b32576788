// Package system tests whole shards of real processes: an object store, two servers and VMs with agents. It breaks them
// and checks how the shard reacts. It contains tests only. They run the binaries in the directory of the flag -bin.
// These scripts build the binaries and run the tests:
//
//	scripts/test.sh kill9     kill -9 of random processes under load
//	scripts/test.sh failover  time without a leader after kill -9, SIGSTOP and SIGTERM
//	scripts/chaos.sh          every fault that this machine can make, in network namespaces
//	scripts/test.sh copied    a server that uses a copy of the bucket
//	scripts/test.sh paused    SIGSTOP of the leader of the cluster that `make up` starts
//
// Without -bin, a test of this package does nothing, and logs the name of its script.
package system

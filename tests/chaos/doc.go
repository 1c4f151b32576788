// Package chaos breaks whole shards of real processes in every way that this machine can: servers, object store and VMs
// have network namespaces of their own, joined by a network that this test carries by hand. Two shards are broken side
// by side, one whose leader has an heir and one without. After each fault a shard must come to rest as it should be. It
// has tests only: scripts/chaos.sh runs them.
//
// Invariant: a fault is over before its outcome is judged; what must hold during it is judged while it lasts.
package chaos

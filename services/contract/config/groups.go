package config

// Groups is `groups/{shard}.jsonc`: dynamic groups, and overrides of static ones.
type Groups struct {
	// Term of the leader that wrote this version, and the count of writes, so that no two versions have the same bytes.
	Term, Revision uint64
	// Tenants holds the groups by tenant, then by name.
	Tenants map[string]map[string]GroupSpec
}

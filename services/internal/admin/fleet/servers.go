package fleet

import (
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

// Servers holds the operator addresses of shards, in the given order.
type Servers struct {
	shards []string
	addrs  map[string][]string
}

// ParseServers parses `shard=host:port,…` ([endpoints.Parse]). The addresses of a shard are tried in turn.
func ParseServers(text string) (Servers, error) {
	shards, err := endpoints.Parse(text)
	if err != nil {
		return Servers{}, fmt.Errorf("server %w", err)
	}
	s := Servers{addrs: map[string][]string{}}
	for _, shard := range shards {
		s.shards, s.addrs[shard.Name] = append(s.shards, shard.Name), shard.Addrs
	}
	return s, nil
}

// Shards returns the names of the shards.
func (s Servers) Shards() []string { return slices.Clone(s.shards) }

// Has reports whether there is an address of a shard.
func (s Servers) Has(shard string) bool { return len(s.addrs[shard]) > 0 }

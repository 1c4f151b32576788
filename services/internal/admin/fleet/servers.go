package fleet

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Servers are the operator addresses of shards, in the order they were given.
type Servers struct {
	shards []string
	addrs  map[string][]string
}

// ParseServers reads `shard=host:port,…`. A shard that is there several times has several addresses, which are tried in turn.
func ParseServers(text string) (Servers, error) {
	s := Servers{addrs: map[string][]string{}}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		shard, addr, ok := strings.Cut(part, "=")
		if !ok {
			return Servers{}, fmt.Errorf("server %q: want shard=host:port", part)
		}
		if err := ident.ValidateName(shard); err != nil {
			return Servers{}, fmt.Errorf("server %q: shard: %w", part, err)
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" {
			return Servers{}, fmt.Errorf("server %q: %q is not host:port", part, addr)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return Servers{}, fmt.Errorf("server %q: port %q is not a number from 1 to 65535", part, port)
		}
		if _, known := s.addrs[shard]; !known {
			s.shards = append(s.shards, shard)
		}
		if !slices.Contains(s.addrs[shard], addr) {
			s.addrs[shard] = append(s.addrs[shard], addr)
		}
	}
	return s, nil
}

// Shards returns the names of the shards.
func (s Servers) Shards() []string { return slices.Clone(s.shards) }

// Has says whether there is an address of a shard.
func (s Servers) Has(shard string) bool { return len(s.addrs[shard]) > 0 }

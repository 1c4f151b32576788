package shards

import "time"

// SetGrace changes the time to reconnect before a shard counts as unreachable. Call it before Run.
func (s *Set) SetGrace(d time.Duration) { s.grace = d }

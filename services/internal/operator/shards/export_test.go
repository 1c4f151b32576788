package shards

import "time"

// SetGrace sets how long a shard may be disconnected before it counts as unreachable. Call it before Run.
func (s *Set) SetGrace(d time.Duration) { s.grace = d }

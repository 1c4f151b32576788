package shards

import "time"

// SetGrace changes how long a lost connection may be made anew before the shard counts as unreachable. To be called
// before Run.
func (s *Set) SetGrace(d time.Duration) { s.grace = d }

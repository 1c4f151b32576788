package machine

import "time"

const (
	// orphanGrace is how long a pool's Machine may be without NstanceMachine and instance.
	orphanGrace = time.Minute
	// orphanRecheck is the time until the next decision about a Machine, while one of the shards does not answer.
	orphanRecheck = 10 * time.Second
)

// orphanInput is everything that decideOrphan depends on.
type orphanInput struct {
	// infrastructure: the NstanceMachine exists.
	infrastructure bool
	// shards has an entry for each shard. The instance in an entry is the shard's instance with the same name as the
	// Machine, nil if there is none.
	shards []shardView
	// since is the time when the Machine was first seen without NstanceMachine and instance. decideOrphan updates it.
	since, now time.Time
}

// decideOrphan reports whether the Machine must be deleted (reap). If not, the result "again" is the time until the
// next call. If this time is zero, the next call comes only after a change. The instance may be in any shard, so every
// shard must answer.
func decideOrphan(in *orphanInput) (reap bool, again time.Duration) {
	if in.infrastructure {
		in.since = time.Time{}
		return false, 0
	}
	for _, s := range in.shards {
		exists := s.instance != nil && s.instance.GetState() != stateDeleted
		if exists || !s.reachable || !s.synced {
			in.since = time.Time{}
			return false, orphanRecheck
		}
	}
	if in.since.IsZero() {
		in.since = in.now
	}
	if left := in.since.Add(orphanGrace).Sub(in.now); left > 0 {
		return false, left
	}
	return true, 0
}

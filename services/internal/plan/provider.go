package plan

import "time"

// absenceGrace is how long after its creation a VM may be missing from a complete list, or be unknown to the provider, without being gone:
// clouds promise no more than that a new VM is listed eventually (EC2 API reference, "Eventual consistency").
const absenceGrace = time.Minute

// StateOfAbsent is what is known of an instance that is missing from a complete list, or that the provider says it does
// not know, when asked at that time: gone, once it is older than the grace. Until then, and while its create call is
// not answered, it is whatever it was.
func StateOfAbsent(i *Instance, asked time.Time) ProviderState {
	if i.moving() || asked.Before(latest(i.CreatedAt, i.LaunchedAt).Add(absenceGrace)) {
		return i.Provider.Value
	}
	return ProviderGone
}

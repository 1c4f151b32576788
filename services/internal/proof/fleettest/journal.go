package fleettest

import (
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// FollowEvents implements nstancev1.OperatorServiceServer. It ignores the request's filter.
func (s *Shard) FollowEvents(r *nstancev1.FollowEventsRequest,
	stream nstancev1.OperatorService_FollowEventsServer) error {
	var stored []*nstancev1.JournalEvent
	s.Do(func() {
		stored = s.History
		for i, e := range stored {
			if e.GetPosition() == r.GetAfter() {
				stored = stored[i+1:]
				break
			}
		}
	})
	send := func(e *nstancev1.JournalEvent) error {
		return stream.Send(&nstancev1.FollowEventsResponse{Event: e})
	}
	for _, e := range stored {
		if err := send(e); err != nil {
			return err
		}
	}
	return follow(stream.Context(), s, "FollowEvents", &s.JournalEvents, send)
}

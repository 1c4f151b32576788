package operatorapi

import "time"

// Tune sets what a test cannot wait for. Not while calls are served.
func (s *Service) Tune(queue int, pace, resync time.Duration) {
	s.queue, s.pace, s.resync = queue, pace, resync
}

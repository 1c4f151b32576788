package operatorapi

import "time"

// Tune sets what a test cannot wait for. Not while calls are served.
func (s *Service) Tune(queue int, pace, resync time.Duration) {
	s.queue, s.pace, s.resync = queue, pace, resync
}

// Recheck sets how often an operator's record is looked at while it watches.
func (s *Service) Recheck(every time.Duration) { s.recheck = every }

package operatorapi

import "time"

// Tune sets limits and intervals to values that a test can wait for. It must not be called while calls are served.
func (s *Service) Tune(queue int, pace, resync time.Duration) {
	s.queue, s.pace, s.resync = queue, pace, resync
}

// Recheck sets the time between two checks of a watching operator's record.
func (s *Service) Recheck(every time.Duration) { s.recheck = every }

package operatorapi

import "time"

// Tune sets limits and intervals to values that a test can reach quickly. It must not be called while the service
// serves calls.
func (s *Service) Tune(queue int, pace, resync time.Duration) {
	s.queue, s.pace, s.resync = queue, pace, resync
}

// Recheck sets how often the server checks that the operator of an open watch is still registered.
func (s *Service) Recheck(every time.Duration) { s.recheck = every }

// ScalingNumbers is the part of an instance's status about scaling.
var ScalingNumbers = scalingNumbers

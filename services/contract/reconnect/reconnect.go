// Package reconnect says how fast agents come back to a leader. Agents and the planner share it: the planner must not
// take an agent for silent that is only waiting for its next try.
package reconnect

import "time"

const (
	// MaxPause is the longest pause between two tries of any agent.
	MaxPause = 30 * time.Second
	// AttemptTimeout is how long a try may take before the agent gives it up.
	AttemptTimeout = 10 * time.Second

	minLongest = time.Second
)

// LongestPause returns the longest pause between two tries of an agent that reports at the given interval; zero: the
// agent does not know the interval yet.
func LongestPause(reportInterval time.Duration) time.Duration {
	if reportInterval <= 0 {
		return MaxPause
	}
	return min(max(reportInterval, minLongest), MaxPause)
}

// ReturnTime returns how long after the first agent every other agent has had time to connect to a new leader and to
// send a report. An agent that was started meanwhile does not know its interval, so this counts the longest pause of
// any agent.
func ReturnTime(reportInterval time.Duration) time.Duration {
	return MaxPause + AttemptTimeout + reportInterval
}

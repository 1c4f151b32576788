// Package reconnect defines how fast agents reconnect to a leader. Agents and the planner share this package: while an
// agent only waits for its next attempt, the planner must not count it as silent.
package reconnect

import "time"

const (
	// MaxPause is the longest pause between two attempts of an agent to connect.
	MaxPause = 30 * time.Second
	// AttemptTimeout is the time limit of one attempt to connect.
	AttemptTimeout = 10 * time.Second

	minLongest = time.Second
)

// LongestPause returns the longest pause between two attempts of an agent to connect. The agent reports at the given
// interval. An interval of zero means that the agent does not know the interval yet.
func LongestPause(reportInterval time.Duration) time.Duration {
	if reportInterval <= 0 {
		return MaxPause
	}
	return min(max(reportInterval, minLongest), MaxPause)
}

// ReturnTime returns how long it may take until all agents have connected to a new leader and sent a report. The time
// counts from the first agent's connection. An agent that has just started does not know its report interval, so it may
// wait for [MaxPause].
func ReturnTime(reportInterval time.Duration) time.Duration {
	return MaxPause + AttemptTimeout + reportInterval
}

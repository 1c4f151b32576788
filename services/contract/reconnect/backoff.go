package reconnect

import "time"

// Backoff returns the pause after a number of consecutive failures: first after one failure, twice as long after each
// further one, and at most longest. All retries take their pauses from here, so that each has a limit.
func Backoff(first, longest time.Duration, failures int) time.Duration {
	pause := min(first, longest)
	for n := 1; n < failures; n++ {
		if pause <= 0 || pause > longest/2 {
			return longest
		}
		pause *= 2
	}
	return pause
}

package bench

import (
	"testing"
	"time"
)

// BenchmarkSpare loses members of groups that have warm spares. It measures the time from an agent's announcement of a
// power-off until the agent of a spare is told that its instance is a member now: one write to the bucket, which takes
// 20 ms, lies between.
func BenchmarkSpare(b *testing.B) {
	const size, spares, rounds = 10, 3, 30
	s := &stack{b: b, boot: true, spares: spares}
	s.open(size*groups, 20*time.Millisecond)
	group := map[string]int{} // by instance
	members := make([][]string, groups)
	take := func(g int, e entered) {
		s.startAgent(g, e)
		id := e.req.Tags.Instance.String()
		if group[id] = g; !e.req.Tags.Spare {
			members[g] = append(members[g], id)
		}
	}
	for g := range groups {
		for range size + spares {
			take(g, <-s.creates[g])
		}
	}
	s.fleet.awaitUp(b, (size+spares)*groups)
	<-time.After(10 * time.Second) // until the burst of files and first reports is over
	var took []time.Duration
	for range rounds {
		for g := range groups {
			id := members[g][0]
			members[g] = members[g][1:]
			s.fleet.orders <- order{Op: "power_off", ID: id}
			joined := <-s.fleet.joined
			at := s.fleet.sentAt(b, id)
			if group[joined.ID] != g {
				b.Fatalf("%s of group %d became a member, after a loss in group %d", joined.ID, group[joined.ID], g)
			}
			took = append(took, time.Unix(0, joined.At).Sub(at.began))
			members[g] = append(members[g], joined.ID)
			take(g, <-s.creates[g]) // the spare that refills the pool
			<-time.After(20 * time.Millisecond)
		}
	}
	percentiles(b, "loss-to-member", took)
}

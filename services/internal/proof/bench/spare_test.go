package bench

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// BenchmarkSpare loses members of groups that have warm spares. It measures the time from an agent's announcement of a
// power-off until the agent of a spare is told that its instance is a member now, and, if the spare sleeps, until the
// provider is asked to wake it: one write to the bucket, which takes 20 ms, lies between. The VM of the benchmark's
// sleeping spare keeps its agent, so the time in which a VM wakes is not measured.
func BenchmarkSpare(b *testing.B) {
	for _, state := range []string{config.SparesRunning, config.SparesStopped} {
		b.Run(state, func(b *testing.B) { benchmarkSpare(b, state) })
	}
}

func benchmarkSpare(b *testing.B, state string) {
	const size, spares, rounds = 10, 3, 30
	s := &stack{b: b, boot: true, spares: spares, spareState: state}
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
	var told, woken []time.Duration
	for range rounds {
		for g := range groups {
			if state != config.SparesRunning {
				s.awaitAsleep(spares * groups)
			}
			id := members[g][0]
			members[g] = members[g][1:]
			s.fleet.orders <- order{Op: "power_off", ID: id}
			joined := <-s.fleet.joined
			at := s.fleet.sentAt(b, id)
			if group[joined.ID] != g {
				b.Fatalf("%s of group %d became a member, after a loss in group %d", joined.ID, group[joined.ID], g)
			}
			told = append(told, time.Unix(0, joined.At).Sub(at.began))
			if state != config.SparesRunning {
				woken = append(woken, (<-s.wakes).Sub(at.began))
			}
			members[g] = append(members[g], joined.ID)
			take(g, <-s.creates[g]) // the spare that refills the pool
			<-time.After(20 * time.Millisecond)
		}
	}
	percentiles(b, "loss-to-member", told)
	if len(woken) > 0 {
		percentiles(b, "loss-to-wake", woken)
	}
}

// awaitAsleep waits until a number of VMs sleep.
func (s *stack) awaitAsleep(want int) {
	s.b.Helper()
	for end := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		asleep := 0
		for _, vm := range s.provider.VMs() {
			if vm.Tags.Spare && vm.State == infra.Stopped {
				asleep++
			}
		}
		switch {
		case asleep >= want:
			return
		case time.Now().After(end):
			s.b.Fatalf("%d spares sleep, want %d", asleep, want)
		}
	}
}

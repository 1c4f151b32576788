package transport

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// sixteen is so many addresses.
func sixteen() (from []netip.Addr) {
	for next := bad; len(from) < 16; next = next.Next() {
		from = append(from, next)
	}
	return from
}

// work is one handshake of a source, which takes a millisecond of a processor, waits for its client, and takes another.
func work(d *desk, from netip.Addr, vain bool) (ok bool) {
	paid, ok := d.take(from, handshakeTimeout)
	if !ok {
		return false
	}
	time.Sleep(time.Millisecond) // fake time, here and below
	d.give()
	time.Sleep(5 * time.Millisecond)
	if ok = d.takeAgain(handshakeTimeout); ok {
		time.Sleep(time.Millisecond)
		d.give()
	}
	d.judge(from, paid, vain)
	return ok
}

func (d *desk) isEmpty(t *testing.T, places int) {
	t.Helper()
	if d.free != places || d.spent != 0 || d.timing || len(d.lines) != 0 || d.again.Len()+d.honest.Len()+
		d.doubtful.Len() != 0 {
		t.Errorf("%d places, %d spent, %d sources, %d, %d and %d wait; want %d and nothing", d.free, d.spent,
			len(d.lines), d.again.Len(), d.honest.Len(), d.doubtful.Len(), places)
	}
}

// No more work at once than there are places; who was there already comes before all others, and sources alternate.
func TestDeskPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(2)
		var working, most, served atomic.Int64
		for range 100 {
			go func() {
				if _, ok := d.take(bad, time.Hour); ok {
					most.Store(max(most.Load(), working.Add(1)))
					time.Sleep(time.Second)
					working.Add(-1)
					served.Add(1)
					d.give()
				}
			}()
		}
		synctest.Wait()
		began := time.Now()
		go func() {
			if d.takeAgain(time.Hour) {
				if took := time.Since(began); took != time.Second {
					t.Errorf("who was there already waited %s, want a second", took)
				}
				d.give()
			}
		}()
		if _, ok := d.take(good, time.Hour); !ok || time.Since(began) > 2*time.Second {
			t.Errorf("from elsewhere: %v after %s, want two seconds at most", ok, time.Since(began))
		}
		d.give()
		if _, ok := d.take(good, time.Millisecond); ok {
			t.Error("there was a place too many")
		}
		if d.takeAgain(time.Millisecond) {
			t.Error("there was a place too many, again")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if most.Load() != 2 || served.Load() != 100 {
			t.Errorf("%d worked at once, %d in all; want 2 and 100", most.Load(), served.Load())
		}
		d.isEmpty(t, 2)
	})
}

// However many addresses they come from, forty handshakes in vain a second are all. Honest neighbours at each of these
// addresses get in, and who comes from elsewhere does not notice.
func TestDeskInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		stop := make(chan struct{})
		var failed, served atomic.Int64
		for _, from := range sixteen() {
			for range 8 { // each comes again as soon as it has failed
				go func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if work(d, from, true) {
							failed.Add(1)
						}
					}
				}()
			}
		}
		time.Sleep(time.Second)
		before := failed.Load()
		for _, from := range sixteen() {
			go func() {
				for !work(d, from, false) { // as an agent does that gets no answer
				}
				served.Add(1)
			}()
		}
		for range 100 {
			began := time.Now()
			if !work(d, good, false) || time.Since(began) > 10*time.Millisecond {
				t.Errorf("from elsewhere: %s", time.Since(began))
			}
			time.Sleep(200 * time.Millisecond)
		}
		if n, most := failed.Load()-before, int64(21*41); n > most || n < most/2 {
			t.Errorf("%d handshakes in vain in 21 s, want about %d", n, most)
		}
		if served.Load() < 14 { // of many times as many that wait with them: it is a lottery
			t.Errorf("%d of 16 honest neighbours got in within 21 s", served.Load())
		}
		close(stop)
		time.Sleep(time.Minute)
		synctest.Wait()
		d.isEmpty(t, 1)
	})
}

// Handshakes that succeed are as many as come from a doubtful source, too: thousands of agents may share an address
// with somebody hostile.
func TestDeskOfAFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		work(d, bad, true)
		began := time.Now()
		var served atomic.Int64
		for range 3000 {
			go func() {
				if work(d, bad, false) {
					served.Add(1)
				}
			}()
		}
		time.Sleep(8 * time.Second) // each takes two milliseconds
		if synctest.Wait(); served.Load() != 3000 {
			t.Errorf("%d of 3000 were served in %s", served.Load(), time.Since(began))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		d.isEmpty(t, 1)
	})
}

// A source is doubtful until ten seconds after its last handshake in vain, whatever it does meanwhile.
func TestDeskDoubts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1)
		doubtful := func() bool { paid := d.mustTake(t, bad); d.give(); d.judge(bad, paid, false); return paid }
		if doubtful() {
			t.Error("doubtful before anything was in vain")
		}
		d.judge(bad, d.mustTake(t, bad), true)
		d.give()
		time.Sleep(6 * time.Second)
		d.judge(bad, false, true) // failed before it had a place
		time.Sleep(doubt - time.Millisecond)
		if !doubtful() {
			t.Error("not doubtful any more before ten seconds are over")
		}
		time.Sleep(2 * time.Millisecond)
		if synctest.Wait(); doubtful() {
			t.Error("doubtful after more than ten seconds")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		d.isEmpty(t, 1)
	})
}

func (d *desk) mustTake(t *testing.T, from netip.Addr) (paid bool) {
	t.Helper()
	paid, ok := d.take(from, 0)
	if !ok {
		t.Fatal("no place")
	}
	return paid
}

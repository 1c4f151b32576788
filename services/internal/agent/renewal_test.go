package agent_test

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

// TestRenewal checks that the certificate is renewed after two thirds of its life, with a new key. The next session
// begins immediately and uses the new certificate.
func TestRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.ttl, s.interval = 9*time.Hour, "10m"
		stopServer := s.start(t, n.listen(address))
		_, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		began := time.Now()
		drain := func(d time.Duration) {
			for end := time.After(d); ; {
				select {
				case <-s.reports:
				case <-end:
					return
				}
			}
		}
		drain(13 * time.Hour)
		renewals := get(s, func() []time.Time { return s.renewals })
		if len(renewals) != 2 || renewals[0].Sub(began) < 6*time.Hour || renewals[0].Sub(began) > 6*time.Hour+
			15*time.Minute {
			t.Errorf("renewed at %v, began at %v", renewals, began)
		}
		if sessions := get(s, func() int { return len(s.sessions) }); sessions != 3 {
			t.Errorf("%d streams", sessions)
		}
		stopServer()
		defer s.start(t, n.listen(address))()
		drain(time.Minute)
		serials, previous, current := get(s, func() []string { return s.serials }),
			get(s, func() ed25519.PublicKey {
				return s.previous
			}), get(s, func() ed25519.PublicKey { return s.current })
		if len(serials) != 4 || serials[0] == serials[1] || serials[1] == serials[2] || serials[2] != serials[3] {
			t.Errorf("serials %v", serials)
		}
		if previous.Equal(current) || previous.Equal(get(s, func() ed25519.PublicKey { return s.spentBy })) {
			t.Error("the key did not change with each renewal")
		}

		// The server refuses every renewal until the certificate has expired. Meanwhile the streams continue, and the
		// agent retries the renewal.
		s.set(func() { s.refuse = status.Error(codes.Unavailable, "store is away"); s.renewals = nil })
		drain(10 * time.Hour)
		s.set(func() { s.refuse = nil })
		drain(time.Hour)
		if renewals := get(s, func() int { return len(s.renewals) }); renewals != 1 {
			t.Errorf("%d renewals", renewals)
		}
		if sessions := get(s, func() int { return len(s.sessions) }); sessions != 5 {
			t.Errorf("%d streams", sessions)
		}
	})
}

// TestLostRenewal checks that an agent recovers when the server's answer to a renewal is lost, even if the agent then
// restarts. After the renewal, the server accepts only the key that the agent sent with that renewal.
func TestLostRenewal(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := &network{}
			s := newFakeServer(t, newID(t))
			s.ttl, s.interval = 9*time.Hour, "10m"
			defer s.start(t, n.listen(address))()
			m := newMemories(t, s)
			_, stop := run(t, m.options(s, n))
			s.next(t, "sequence 1", first)
			lost := make(chan struct{})
			s.set(func() { s.lost = lost })
			for waiting := true; waiting; {
				select {
				case <-s.reports:
				case <-lost:
					waiting = false
				}
			}
			if restart {
				stop()
				_, stop = run(t, m.options(s, n))
			}
			defer stop()
			for report := <-s.reports; !first(report); report = <-s.reports {
			}
			if renewals := get(s, func() int { return len(s.renewals) }); renewals != 2 {
				t.Errorf("%d renewals", renewals)
			}
		})
	}
}

// TestRefusedNextKey checks that an agent whose next key came with a copied disk makes another one.
func TestRefusedNextKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.ttl, s.interval = 9*time.Hour, "10m"
		defer s.start(t, n.listen(address))()
		m := newMemories(t, s)
		_, stop := run(t, m.options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		public, foreign, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := authority.EncodePrivateKey(foreign)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.identity.Write("identity-next.key", text, 0o600); err != nil {
			t.Fatal(err)
		}
		s.set(func() { s.foreign = public })
		for end := time.After(7 * time.Hour); end != nil; {
			select {
			case <-s.reports:
			case <-end:
				end = nil
			}
		}
		if renewals := get(s, func() int { return len(s.renewals) }); renewals != 1 {
			t.Errorf("%d renewals", renewals)
		}
	})
}

// TestExpiredCertificate starts the server after the certificate has expired, as in a shard whose servers were stopped
// for a week. The expired certificate still allows its renewal.
func TestExpiredCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.ttl = 10 * time.Minute
		stopServer := s.start(t, n.listen(address))
		m := newMemories(t, s)
		_, stop := run(t, m.options(s, n))
		s.next(t, "sequence 1", first)
		stopServer()
		n.unlisten()
		time.Sleep(30 * time.Minute)
		defer s.start(t, n.listen(address))()
		s.next(t, "sequence 1", first)
		if renewals := get(s, func() int { return len(s.renewals) }); renewals != 1 {
			t.Errorf("%d renewals", renewals)
		}
		stop()

		// An agent that is started after its certificate has expired renews the certificate.
		time.Sleep(30 * time.Minute)
		_, stop = run(t, m.options(s, n))
		defer stop()
		s.next(t, "sequence 1", first)
		got := get(s, func() [2]int { return [2]int{len(s.renewals), len(s.registrations)} })
		if diff := cmp.Diff([2]int{2, 1}, got); diff != "" {
			t.Errorf("renewals and registrations: %s", diff)
		}
	})
}

// If the server's clock is so far behind the agent's clock that every new certificate has already expired, the agent
// renews at a low rate.
func TestCertificateExpiredOnArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		s := newFakeServer(t, newID(t))
		s.ttl, s.lag = time.Hour, 2*time.Hour
		defer s.start(t, n.listen(address))()
		client, stop := run(t, newMemories(t, s).options(s, n))
		defer stop()
		time.Sleep(10 * time.Minute)
		if renewals := get(s, func() int { return len(s.renewals) }); renewals < 20 || renewals > 60 {
			t.Errorf("%d renewals in ten minutes", renewals)
		}
		if err := client.Health(); err == nil || !strings.Contains(err.Error(), "clock") {
			t.Errorf("Health: %v", err)
		}
		s.set(func() { s.lag = 0 })
		s.next(t, "sequence 1", first)
	})
}

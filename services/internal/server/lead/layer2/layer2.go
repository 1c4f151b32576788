// Package layer2 holds the leader's address without a cloud: the address is on the leader's network interface, and
// other machines of the layer 2 network learn of it by ARP (RFC 826) and NDP (RFC 4861).
//
// The address has a lifetime in the kernel, which each [Address.Acquire] renews. A server that is stopped, or that
// loses its lease without noticing it, therefore loses the address within [Lifetime]. There is no election here: the
// shard's leader calls Acquire, and no other server does.
package layer2

import (
	"errors"
	"time"
)

const (
	// Lifetime is the time after which the kernel removes an address that is not renewed. The kernel counts lifetimes
	// in whole seconds.
	Lifetime = 2 * time.Second
	// Interval is the time between two calls of Acquire.
	Interval = 200 * time.Millisecond
	// settled is how long after the acquisition a former leader may still have the address. If another machine claims
	// the address later than that, there is a conflict.
	settled = 2 * Lifetime
	// repeat is the time between two announcements after the last one in the variable announcements. It is also the
	// time between two probes.
	repeat = 30 * time.Second
	// conflictFor is the time for which a conflict is reported after the last claim of another machine.
	conflictFor = repeat + 5*time.Second
)

// announcements are the times of the first announcements, counted from the acquisition of the address. There are
// several, because an announcement can be lost. In addition, a former leader can answer for the address until the
// lifetime of the address on its machine ends.
var announcements = []time.Duration{0, Interval, 500 * time.Millisecond, time.Second, Lifetime}

// schedule decides when an address is announced, and when other machines are asked whether they have the address. Its
// times count from the moment at which the address was acquired.
type schedule struct {
	announced int           // number of announcements
	probed    int           // number of probes
	heard     time.Duration // time of the last answer of another machine after settled; 0: none
	other     string        // the machine that answered
}

// announce reports whether an announcement is due, and if so, counts it as sent.
func (s *schedule) announce(now time.Duration) bool {
	due := time.Duration(s.announced-len(announcements)+1) * repeat
	if s.announced < len(announcements) {
		due = announcements[s.announced]
	}
	if now < due {
		return false
	}
	s.announced++
	return true
}

// probe reports whether a probe is due, and if so, counts it as sent.
func (s *schedule) probe(now time.Duration) bool {
	if now < settled+time.Duration(s.probed)*repeat {
		return false
	}
	s.probed++
	return true
}

// hear records that another machine claims the address. other identifies that machine. Within the time [settled] after
// the acquisition, a claim does not count, because it can come from a former leader.
func (s *schedule) hear(now time.Duration, other string) {
	if now >= settled {
		s.heard, s.other = now, other
	}
}

// conflict returns the other machine that claims the address, or "".
func (s *schedule) conflict(now time.Duration) string {
	if s.heard == 0 || now >= s.heard+conflictFor {
		return ""
	}
	return s.other
}

// conflictError is the MAC address of another machine that claims the address.
type conflictError string

func (e conflictError) Error() string {
	return "the machine with the MAC address " + string(e) + " has this address too, so clients reach one or the " +
		"other: remove the address there"
}

// errCapability means that this process lacks permission to change addresses or send announcements.
var errCapability = errors.New("kind arp needs CAP_NET_ADMIN and CAP_NET_RAW: give them to the server's unit, " +
	"for example with the drop-in nstance-server-arp.conf of the images")

// Package fault owns what a test makes go wrong on purpose.
//
// Invariant: a fault happens exactly as often as it was asked for, to the calls that match it, and is told by what a
// client could also see from AWS. A Set may be used concurrently.
package fault

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Match says which calls; an empty field matches all.
type Match struct {
	Service string // signing name: ec2, elasticloadbalancing
	Action  string // RunInstances
	Role    string // name of the caller's role; calls of the account itself have none
}

// Effect is what happens to a call. Without any, the call is done and answered as ever.
type Effect struct {
	Err   *wire.Error   // answered instead of doing anything
	Delay time.Duration // before anything happens
	Lost  bool          // done, and the connection is cut instead of the answer
}

// Forever as a number of calls: until Clear.
const Forever = -1

type rule struct {
	match  Match
	left   int
	effect Effect
}

type shortage struct {
	instanceType, zone, subnet string
	code                       string
}

// Set holds the faults of one cloud. The zero value has none.
type Set struct {
	mu        sync.Mutex
	rules     []*rule
	shortages []shortage
	lag       time.Duration
}

// Fail makes the next n matching calls fail with an error.
func (s *Set) Fail(m Match, n int, status int, code, message string) {
	s.add(m, n, Effect{Err: wire.Errorf(status, code, "%s", message)})
}

// Throttle makes the next n matching calls fail as the service says that it was called too often.
func (s *Set) Throttle(m Match, n int) {
	s.add(m, n, Effect{Err: &wire.Error{}})
}

// Delay makes the next n matching calls wait before they are looked at.
func (s *Set) Delay(m Match, n int, d time.Duration) { s.add(m, n, Effect{Delay: d}) }

// LoseAnswer does the next n matching calls and cuts their connections instead of answering.
func (s *Set) LoseAnswer(m Match, n int) { s.add(m, n, Effect{Lost: true}) }

func (s *Set) add(m Match, n int, e Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &rule{match: m, left: n, effect: e})
}

// NoCapacity makes launches fail that match all of the non-empty arguments, until Clear, with
// InsufficientInstanceCapacity or another code of its kind (SpotMaxPriceTooLow, InstanceLimitExceeded,
// VcpuLimitExceeded, Unsupported …).
func (s *Set) NoCapacity(instanceType, zone, subnet, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shortages = append(s.shortages, shortage{instanceType: instanceType, zone: zone, subnet: subnet, code: code})
}

// SetLag makes EC2's describe calls show what is new only after a while: its eventual consistency.
func (s *Set) SetLag(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag = d
}

// Clear ends all faults.
func (s *Set) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.shortages, s.lag = nil, nil, 0
}

// Take uses up the oldest fault of each kind that matches a call, and says what happens to it.
func (s *Set) Take(service, action, role string) Effect {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out Effect
	for _, r := range s.rules {
		if r.left == 0 || !r.match.matches(service, action, role) {
			continue
		}
		switch {
		case r.effect.Err != nil && out.Err == nil:
			out.Err = r.effect.Err
		case r.effect.Delay > 0 && out.Delay == 0:
			out.Delay = r.effect.Delay
		case r.effect.Lost && !out.Lost:
			out.Lost = true
		default:
			continue
		}
		if r.left > 0 {
			r.left--
		}
	}
	s.rules = slices.DeleteFunc(s.rules, func(r *rule) bool { return r.left == 0 })
	if out.Err != nil && out.Err.Code == "" {
		out.Err = throttled(service)
	}
	return out
}

// Pending is how many faults wait for a call: a test that meant one to happen checks that it did.
func (s *Set) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rules)
}

// Capacity is nil when an instance of the type may start there; else the error of RunInstances, CreateFleet or a
// scaling activity.
func (s *Set) Capacity(instanceType, zone, subnet string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.shortages {
		if fits(h.instanceType, instanceType) && fits(h.zone, zone) && fits(h.subnet, subnet) {
			return wire.Errorf(capacityStatus(h.code), h.code,
				"We currently do not have sufficient %s capacity in the Availability Zone you requested (%s).",
				instanceType, zone)
		}
	}
	return nil
}

// Lag is for how long describe calls do not show what is new.
func (s *Set) Lag() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lag
}

func (m Match) matches(service, action, role string) bool {
	return fits(m.Service, service) && fits(m.Action, action) && fits(m.Role, role)
}

func fits(want, have string) bool { return want == "" || want == have }

// capacityStatus: a lack of capacity is the server's fault, a limit of the account the client's.
// Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func capacityStatus(code string) int {
	switch code {
	case "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity",
		"InsufficientReservedInstanceCapacity":
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

// throttled is each service's own way to say so. Source: the services' pages of common errors.
func throttled(service string) *wire.Error {
	switch service {
	case "ec2":
		return wire.Errorf(http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
	case "s3":
		return wire.Errorf(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
	case "ssm", "secretsmanager":
		return wire.Errorf(http.StatusBadRequest, "ThrottlingException", "Rate exceeded")
	}
	return wire.Errorf(http.StatusBadRequest, "Throttling", "Rate exceeded")
}

// Package fault injects failures into the fake AWS when a test requests them.
//
// Invariant: a fault affects exactly the requested number of matching calls. A client never gets an answer that AWS
// could not give. A Set is safe for concurrent use.
package fault

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Match selects calls. An empty field matches all calls.
type Match struct {
	Service string // Signing name, such as "ec2" or "elasticloadbalancing".
	Action  string // Such as "RunInstances".
	Role    string // Name of the caller's role; "" for calls of the account itself.
}

// Effect is the combined effect of faults on a call. The zero value means no effect.
type Effect struct {
	Err   *wire.Error   // The answer; the call is not executed.
	Delay time.Duration // Wait before anything else.
	Lost  bool          // The call is executed, and then the connection is cut.
}

// Forever as the parameter n makes a fault affect all matching calls until [Set.Clear].
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

// Set holds the faults of one cloud. The zero value holds no faults. A Set is safe for concurrent use.
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

// Throttle makes the next n matching calls fail with the service's throttling error.
func (s *Set) Throttle(m Match, n int) {
	s.add(m, n, Effect{Err: &wire.Error{}})
}

// Delay delays the next n matching calls by d, before they are evaluated.
func (s *Set) Delay(m Match, n int, d time.Duration) { s.add(m, n, Effect{Delay: d}) }

// LoseAnswer makes the service execute the next n matching calls. Instead of answering them, the service cuts their
// connections.
func (s *Set) LoseAnswer(m Match, n int) { s.add(m, n, Effect{Lost: true}) }

func (s *Set) add(m Match, n int, e Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &rule{match: m, left: n, effect: e})
}

// NoCapacity makes launches that match all non-empty arguments fail with code, until Clear. code is
// InsufficientInstanceCapacity or a similar error, such as SpotMaxPriceTooLow, InstanceLimitExceeded, VcpuLimitExceeded
// or Unsupported.
func (s *Set) NoCapacity(instanceType, zone, subnet, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shortages = append(s.shortages, shortage{instanceType: instanceType, zone: zone, subnet: subnet, code: code})
}

// SetLag delays the appearance of new resources in EC2's describe calls by d. It simulates EC2's eventual consistency.
func (s *Set) SetLag(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lag = d
}

// Clear removes all faults.
func (s *Set) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.shortages, s.lag = nil, nil, 0
}

// Take consumes the oldest matching error, the oldest matching delay and the oldest matching lost answer. It returns
// their combined effect on the call.
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

// Pending returns the number of faults that can still affect calls. A test can check that all its faults have happened.
func (s *Set) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rules)
}

// Capacity returns nil if an instance of the type may start in the zone and the subnet. Otherwise it returns the error
// of RunInstances, CreateFleet or a scaling activity.
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

// Lag returns how long describe calls hide new resources.
func (s *Set) Lag() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lag
}

func (m Match) matches(service, action, role string) bool {
	return fits(m.Service, service) && fits(m.Action, action) && fits(m.Role, role)
}

func fits(want, have string) bool { return want == "" || want == have }

// capacityStatus returns the HTTP status of a code. A lack of capacity is a server error, and an account limit is a
// client error. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
func capacityStatus(code string) int {
	switch code {
	case "InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity",
		"InsufficientReservedInstanceCapacity":
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

// throttled returns the throttling error of a service, as documented on the service's page of common errors.
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

// Package rate imitates the request throttling of EC2. Each action has a bucket of tokens for its requests, and some
// actions have a second bucket for the instances that the requests name. A request that finds a bucket empty is refused
// with RequestLimitExceeded and takes no token.
//
// Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html
package rate

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Limit describes a bucket. A full bucket holds Burst tokens, and PerSecond tokens are added each second.
type Limit struct{ Burst, PerSecond float64 }

// Limits are the limits of one account in one region. Limits is safe for concurrent use.
type Limits struct {
	requests  map[string]Limit // by action
	resources map[string]Limit // by action: tokens per instance
	category  func(*wire.Call) Limit

	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	tokens float64
	at     time.Time
}

// Documented returns the limits that EC2 documents for every account.
func Documented() *Limits {
	return &Limits{
		requests: map[string]Limit{
			"RunInstances":           {5, 2},
			"StartInstances":         {5, 2},
			"TerminateInstances":     {100, 5},
			"CreateNetworkInterface": {100, 5},
			"DeleteNetworkInterface": {100, 5},
		},
		resources: map[string]Limit{"RunInstances": {1000, 2}, "StartInstances": {1000, 2},
			"StopInstances": {1000, 20}, "TerminateInstances": {1000, 20}},
		category: categoryOf,
	}
}

// Only returns Limits that apply to the given actions. Requests with other actions have no limit.
func Only(requests map[string]Limit) *Limits { return &Limits{requests: requests} }

// unfiltered is the set of describe actions that have a smaller bucket for requests that have neither filters nor
// pagination.
var unfiltered = map[string]bool{"DescribeInstances": true, "DescribeInstanceStatus": true,
	"DescribeNetworkInterfaces": true, "DescribeSecurityGroups": true, "DescribeSnapshots": true,
	"DescribeSpotInstanceRequests": true, "DescribeVolumes": true}

// categoryOf returns the limit of a call whose action has no limit of its own.
func categoryOf(call *wire.Call) Limit {
	switch {
	case isSmall(call):
		return Limit{50, 10}
	case isRead(call.Action):
		return Limit{100, 20}
	}
	return Limit{50, 5}
}

func isRead(action string) bool {
	for _, verb := range []string{"Describe", "List", "Search", "Get"} {
		if strings.HasPrefix(action, verb) {
			return true
		}
	}
	return false
}

func isSmall(call *wire.Call) bool {
	if !unfiltered[call.Action] {
		return false
	}
	for name := range call.Form {
		if name == "MaxResults" || name == "NextToken" || strings.HasPrefix(name, "Filter.") {
			return false
		}
	}
	return true
}

// Take takes the tokens of a call, or returns RequestLimitExceeded. Calls of other services than EC2 and of observers
// have no limit. If l is nil, no call has a limit.
func (l *Limits) Take(call *wire.Call) error {
	if l == nil || call.Service != "ec2" || call.Principal.Observer {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	request, limited := l.requests[call.Action]
	if !limited && l.category != nil {
		request, limited = l.category(call), true
	}
	if !limited {
		return nil
	}
	name := call.Action
	if isSmall(call) {
		name += " without filter"
	}
	requests := l.bucket(name, request, call.Now)
	if requests.tokens < 1 {
		return exceeded()
	}
	if limit, ok := l.resources[call.Action]; ok {
		resources, n := l.bucket(call.Action+" instances", limit, call.Now), float64(instances(call))
		if resources.tokens < n {
			return exceeded()
		}
		resources.tokens -= n
	}
	requests.tokens--
	return nil
}

// bucket returns a bucket after it has added the tokens that are due. The caller holds mu.
func (l *Limits) bucket(name string, limit Limit, now time.Time) *bucket {
	b := l.buckets[name]
	if b == nil {
		b = &bucket{tokens: limit.Burst, at: now}
		if l.buckets == nil {
			l.buckets = map[string]*bucket{}
		}
		l.buckets[name] = b
	}
	if now.After(b.at) {
		b.tokens, b.at = min(limit.Burst, b.tokens+now.Sub(b.at).Seconds()*limit.PerSecond), now
	}
	return b
}

// instances returns the number of instances that a call names. If a call names none, the number is 1.
func instances(call *wire.Call) int {
	if n, err := strconv.Atoi(call.Form.Get("MaxCount")); err == nil {
		return max(1, n)
	}
	n := 0
	for name := range call.Form {
		if strings.HasPrefix(name, "InstanceId.") {
			n++
		}
	}
	return max(1, n)
}

func exceeded() error {
	return wire.Errorf(http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded.")
}

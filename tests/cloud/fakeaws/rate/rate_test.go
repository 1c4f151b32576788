package rate

import (
	"net/url"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func call(action string, at time.Duration, form url.Values) *wire.Call {
	return &wire.Call{Service: "ec2", Action: action, Form: form,
		Now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).Add(at)}
}

// accepted returns how many of n calls at one moment are accepted.
func accepted(l *Limits, n int, action string, at time.Duration, form url.Values) (ok int) {
	for range n {
		if l.Take(call(action, at, form)) == nil {
			ok++
		}
	}
	return ok
}

func TestDocumentedLimits(t *testing.T) {
	filtered, paged := url.Values{"Filter.1.Name": {"vpc-id"}}, url.Values{"MaxResults": {"100"}}
	for _, test := range []struct {
		action         string
		form           url.Values
		burst, perNext int // calls accepted at once, and a second later
	}{
		{"RunInstances", nil, 5, 2},
		{"StartInstances", nil, 5, 2},
		{"StopInstances", nil, 50, 5},
		{"TerminateInstances", nil, 100, 5},
		{"DescribeInstances", nil, 50, 10},
		{"DescribeInstances", filtered, 100, 20},
		{"DescribeInstances", paged, 100, 20},
		{"DescribeSubnets", nil, 100, 20},
		{"AttachNetworkInterface", nil, 50, 5},
	} {
		l := Documented()
		if n := accepted(l, 200, test.action, 0, test.form); n != test.burst {
			t.Errorf("%s %v: %d of a burst accepted, want %d", test.action, test.form, n, test.burst)
		}
		if n := accepted(l, 200, test.action, time.Second, test.form); n != test.perNext {
			t.Errorf("%s %v: %d accepted a second later, want %d", test.action, test.form, n, test.perNext)
		}
		if n := accepted(l, 200, test.action, time.Hour, test.form); n != test.burst {
			t.Errorf("%s %v: %d accepted after an hour, want %d", test.action, test.form, n, test.burst)
		}
	}
}

func TestInstancesHaveTheirOwnBucket(t *testing.T) {
	l := Documented()
	if n := accepted(l, 3, "RunInstances", 0, url.Values{"MaxCount": {"400"}}); n != 2 {
		t.Errorf("%d requests for 400 instances accepted, want 2", n)
	}
	if n := accepted(l, 9, "RunInstances", 0, url.Values{"MaxCount": {"1"}}); n != 3 {
		t.Errorf("%d requests for one instance accepted, want the 3 that the request bucket has left", n)
	}
	if n := accepted(Documented(), 9, "TerminateInstances", 0, url.Values{"InstanceId.1": {"i-1"},
		"InstanceId.2": {"i-2"}}); n != 9 {
		t.Errorf("%d requests to terminate accepted, want 9", n)
	}
}

func TestOtherCallsAreUnlimited(t *testing.T) {
	other := call("PutObject", 0, nil)
	other.Service = "s3"
	for name, take := range map[string]func() error{
		"another service": func() error { return Documented().Take(other) },
		"no limits":       func() error { return (*Limits)(nil).Take(call("RunInstances", 0, nil)) },
	} {
		for range 1000 {
			if err := take(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	l := Only(map[string]Limit{"RunInstances": {1, 1}})
	if n := accepted(l, 9, "RunInstances", 0, nil); n != 1 {
		t.Errorf("%d accepted, want 1", n)
	}
	if n := accepted(l, 999, "DescribeInstances", 0, nil); n != 999 {
		t.Errorf("%d of an action without limit accepted, want 999", n)
	}
}

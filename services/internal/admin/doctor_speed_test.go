package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func TestDoctorNamesTheLatencyThatEndsALeadership(t *testing.T) {
	for _, tc := range []struct {
		lease, renew, took time.Duration
		ok                 bool
		limit              string
	}{
		{90 * time.Second, 30 * time.Second, 20 * time.Second, true, "55.5s"},
		{90 * time.Second, 30 * time.Second, 28 * time.Second, false, "55.5s"},
		{10 * time.Second, 5 * time.Second, 2 * time.Second, true, "4.5s"},
		{10 * time.Second, 5 * time.Second, 3 * time.Second, false, "4.5s"},
	} {
		lock := record.Lock{LeaseMS: tc.lease.Milliseconds(), RenewMS: tc.renew.Milliseconds()}
		if f := describeSpeed(lock, tc.took); (f.Status == ok) != tc.ok || !strings.Contains(f.Result, tc.limit) ||
			(f.Next == "") != tc.ok {
			t.Errorf("lease %s, read in %s: %+v", tc.lease, tc.took, f)
		}
	}
}

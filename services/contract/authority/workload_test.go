package authority_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
)

var errForeign = errors.New("foreign")

// workloadCAs returns two CAs of workloads and their secret. The second CA starts a day after the first.
func workloadCAs(t testing.TB) (authority.WorkloadCAs, []byte) {
	t.Helper()
	var cas authority.WorkloadCAs
	for n := range 2 {
		ca, err := authority.CreateWorkloadCA("example", random(byte(n+1)), t0.AddDate(0, 0, n))
		if err != nil {
			t.Fatal(err)
		}
		cas = append(cas, ca)
	}
	secret, err := cas.MarshalSecret()
	if err != nil {
		t.Fatal(err)
	}
	return cas, secret
}

// TestParseWorkloadCAs reads one CA and two. It refuses CAs in the wrong order, the same CA twice, a CA that is not for
// workloads, and an incomplete secret.
func TestParseWorkloadCAs(t *testing.T) {
	cas, both := workloadCAs(t)
	one := must[[]byte](t)(cas[:1].MarshalSecret())
	two := must[[]byte](t)(cas[1:].MarshalSecret())
	foreign := must[[]byte](t)(must[authority.CA](t)(authority.CreateCA("example", random(3), t0)).MarshalSecret())
	for name, c := range map[string]struct {
		secret []byte
		want   int
	}{
		"one": {one, 1}, "two": {both, 2}, "none": {nil, 0}, "in another order": {append(bytes.Clone(two), one...), 0},
		"the same twice": {append(bytes.Clone(one), one...), 0}, "three": {append(bytes.Clone(both), two...), 0},
		"the cluster's CA": {foreign, 0}, "without the second key": {both[:len(both)-120], 0},
	} {
		got, err := authority.ParseWorkloadCAs(c.secret, "example", errForeign)
		if len(got) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %v, %v, want %d CAs", name, got, err, c.want)
		}
	}
	if _, err := authority.ParseWorkloadCAs(both, "other", errForeign); !errors.Is(err, errForeign) {
		t.Errorf("of another cluster: %v", err)
	}
}

// TestWorkloadCAsAt checks that the cluster's CA issues until the first workload CA starts, and then each workload CA
// from its start.
func TestWorkloadCAsAt(t *testing.T) {
	cas, _ := workloadCAs(t)
	cluster := must[authority.CA](t)(authority.CreateCA("example", random(3), t0))
	for after, want := range map[time.Duration]authority.CA{-time.Second: cluster, 0: cas[0], 24*time.Hour - 1: cas[0],
		24 * time.Hour: cas[1], 1000 * time.Hour: cas[1]} {
		if got := cas.At(t0.Add(after), cluster); !got.Certificate().Equal(want.Certificate()) {
			t.Errorf("after %s: %s issues, want %s", after, got, want)
		}
	}
}

// FuzzParseWorkloadCAs checks that no bytes crash the parser, and that what it reads can be written and read again.
func FuzzParseWorkloadCAs(f *testing.F) {
	cas, both := workloadCAs(f)
	one, err := cas[:1].MarshalSecret()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(one)
	f.Add(both)
	f.Fuzz(func(t *testing.T, secret []byte) {
		got, err := authority.ParseWorkloadCAs(secret, "example", errForeign)
		if err != nil {
			return
		}
		again, err := got.MarshalSecret()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := authority.ParseWorkloadCAs(again, "example", errForeign); err != nil || len(back) != len(got) {
			t.Errorf("%d CAs became %d: %v", len(got), len(back), err)
		}
	})
}

package record_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/record"
)

func rollout() record.Rollout {
	version := record.GroupVersion{InfraHash: "i1", RuntimeHash: "r1", Subnets: "subnet-a,subnet-b", Image: "ami-1"}
	good := version
	good.InfraHash, good.Image = "i0", "ami-0"
	return record.Rollout{Schema: record.RolloutSchema, Revision: 3, Term: 7, Tenant: "prod", Group: "web",
		Trust: "0123456789abcdef",
		Halted: &record.Halted{At: t0, Reason: "its agent did not register in time", Failed: version,
			GoodFailedAt: t0.Add(time.Hour), GoodFailed: "its health check fails"},
		Good: &record.Good{At: t0.Add(-time.Hour), Version: good, Config: []byte(`{"template":"worker","a":"<b>"}`)}}
}

func TestRollout(t *testing.T) {
	data, err := rollout().Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := record.Decode[record.Rollout](golden(t, "rollout.json", data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rollout(), got); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*record.Rollout){
		"no revision":            func(r *record.Rollout) { r.Revision = 0 },
		"no term":                func(r *record.Rollout) { r.Term = 0 },
		"a foreign tenant":       func(r *record.Rollout) { r.Tenant = "Prod" },
		"a group with a slash":   func(r *record.Rollout) { r.Group = "a/b" },
		"no reason":              func(r *record.Rollout) { r.Halted.Reason = "" },
		"a reason of two lines":  func(r *record.Rollout) { r.Halted.Reason = "a\nb" },
		"no hash":                func(r *record.Rollout) { r.Halted.Failed.InfraHash = "" },
		"half of a failure":      func(r *record.Rollout) { r.Halted.GoodFailed = "" },
		"no time":                func(r *record.Rollout) { r.Good.At = time.Time{} },
		"no configuration":       func(r *record.Rollout) { r.Good.Config = nil },
		"a list":                 func(r *record.Rollout) { r.Good.Config = []byte(`[]`) },
		"white space":            func(r *record.Rollout) { r.Good.Config = []byte(`{ }`) },
		"a large configuration":  func(r *record.Rollout) { r.Good.Config = large() },
		"a damaged trust":        func(r *record.Rollout) { r.Trust = "x" },
		"a schema of the future": func(r *record.Rollout) { r.Schema = 2 },
	} {
		wrong := rollout()
		change(&wrong)
		if body, err := wrong.Encode(); err == nil {
			t.Errorf("%s is accepted: %s", name, body)
		}
	}
	unknown := bytes.Replace(data, []byte(`"schema"`), []byte(`"later":1,"schema"`), 1)
	if _, err := record.Decode[record.Rollout](unknown); err == nil || !strings.Contains(err.Error(), "later") {
		t.Errorf("an unknown field: %v", err)
	}
}

func large() []byte { return []byte(`{"a":"` + strings.Repeat("a", record.MaxSize) + `"}`) }

func TestGroupVersion(t *testing.T) {
	a := record.GroupVersion{InfraHash: "i", RuntimeHash: "r", Image: "ami-1"}
	unknown, other, changed := a, a, a
	unknown.Image, other.Image, changed.RuntimeHash = "", "ami-2", "r2"
	if !a.Is(a) || !a.Is(unknown) || !unknown.Is(a) || a.Is(other) || a.Is(changed) || unknown.Is(changed) {
		t.Error("versions are not told apart")
	}
}

func FuzzRollout(f *testing.F) { fuzz(f, record.Decode[record.Rollout], rollout()) }

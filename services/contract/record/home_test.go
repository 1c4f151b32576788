package record_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
)

// TestHome checks which names of a bucket a home accepts.
func TestHome(t *testing.T) {
	prod := record.Bucket{Provider: "s3", Endpoint: "https://one:443", Name: "prod", Prefix: "team"}
	home := record.Home{Schema: record.HomeSchema, Buckets: []record.Bucket{prod}}
	if !home.Is(prod) {
		t.Error("its own bucket is refused")
	}
	for _, change := range []func(*record.Bucket){
		func(b *record.Bucket) { b.Provider = "gcs" },
		func(b *record.Bucket) { b.Endpoint = "https://two:443" },
		func(b *record.Bucket) { b.Name = "copy" },
		func(b *record.Bucket) { b.Prefix = "" },
	} {
		other := prod
		change(&other)
		if home.Is(other) {
			t.Errorf("%s is the home of %s", home, other)
		}
	}
	if !(record.Home{Schema: 1}).Is(prod) {
		t.Error("a home without a name refuses the next leader")
	}
	home.SnapshotAt = time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)
	if home.Is(prod) {
		t.Error("a restored snapshot is a home")
	}
	for _, change := range []func(*record.Home){
		func(h *record.Home) { h.Schema = 2 },
		func(h *record.Home) { h.Buckets = make([]record.Bucket, 17) },
		func(h *record.Home) { h.Buckets = []record.Bucket{{Name: "b"}} },
	} {
		wrong := home
		change(&wrong)
		if body, err := wrong.Encode(); err == nil {
			t.Errorf("%s is accepted", body)
		}
	}
}

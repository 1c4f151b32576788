package shardstate_test

import (
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// TestDeadlineOfALateDeletion checks the drain deadline when a leader learns of a deletion late. The leader extends the
// deadline once, to give the node time to drain. The record keeps the original deadline.
func TestDeadlineOfALateDeletion(t *testing.T) {
	const drain = 2 * time.Minute
	for _, tc := range []struct {
		name        string
		late, drain time.Duration
		want        time.Duration // from when the leader learns of the deletion
	}{
		{name: "at once", drain: drain, want: drain},
		{name: "with most of the time left", late: 50 * time.Second, drain: drain, want: 70 * time.Second},
		{name: "shortly before the deadline", late: 110 * time.Second, drain: drain, want: 30 * time.Second},
		{name: "after the deadline", late: time.Hour, drain: drain, want: 30 * time.Second},
		{name: "after a short deadline", late: time.Hour, drain: 20 * time.Second, want: 10 * time.Second},
		{name: "no drain", late: time.Second, want: -time.Second},
		{name: "a notice with a deadline in the past", late: time.Second, drain: -time.Minute, want: -61 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPicture(t)
			id := p.serving(t)
			rec, _, _ := p.Record(id)
			rec.Revision++
			rec.State, rec.DeleteReason, rec.DeletingAt, rec.DeleteDeadline = record.Deleting, "test", p.now,
				p.now.Add(tc.drain)
			p.now = p.now.Add(tc.late)
			known := p.now
			p.PutRecord(rec, objstore.Token("marked"))
			if got := p.planned(t, id).DeleteDeadline.Sub(known); got != tc.want {
				t.Errorf("%v are left, want %v", got, tc.want)
			}
			p.now = p.now.Add(time.Minute)
			rec.Revision++
			p.PutRecord(rec, objstore.Token("again"))
			if got := p.planned(t, id).DeleteDeadline.Sub(known); got != tc.want {
				t.Errorf("seen again: %v, want %v", got, tc.want)
			}
			if have, _, _ := p.Record(id); !have.DeleteDeadline.Equal(rec.DeleteDeadline) {
				t.Errorf("the record's deadline moved to %v", have.DeleteDeadline)
			}
		})
	}
}

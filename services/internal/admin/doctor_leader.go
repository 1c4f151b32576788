package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// endOfLeadership returns the event of a shard's journal that says why the newest leadership ended. There is no such
// event if the server was killed or could not write to the bucket. The returned event is then zero.
func endOfLeadership(ctx context.Context, bucket objstore.Store, shard string) (end record.Event) {
	parts, err := journalParts(ctx, bucket, shard)
	if err != nil || len(parts) == 0 {
		return end
	}
	term := parts[len(parts)-1].Term
	for _, part := range parts[max(0, len(parts)-2):] { // a request to step down may be in the part before the last
		if part.Term != term {
			continue
		}
		object, err := bucket.Get(ctx, keys.Journal(shard, part.Time, part.Term, part.First))
		if err != nil {
			continue
		}
		events, err := record.DecodeEvents(object.Body)
		if err != nil {
			continue // cluster verify reports a damaged journal
		}
		for _, e := range events {
			switch {
			case e.Kind == record.EventLeaderStepsDown:
				return e
			case e.Kind == record.EventLeaderEnded && e.Message != "":
				end = e
			}
		}
	}
	return end
}

// withReason adds the reason why the last leadership ended to a finding about a missing leader.
func withReason(f finding, end record.Event) finding {
	switch {
	case end.Kind == record.EventLeaderStepsDown:
		f.Result += "; " + end.Actor + " asked the leader to step down at " + stamp(end.At)
	case end.Kind == record.EventLeaderEnded:
		f.Result += "; the leadership ended at " + stamp(end.At) + ": " + end.Message
		if ofObject(end.Message) {
			f.Next = "nstance-admin cluster verify names all damaged objects; then " + f.Next
		}
	}
	return f
}

// ofObject reports whether an error message says that an object in the bucket is unusable.
func ofObject(message string) bool {
	return slices.ContainsFunc([]string{"decode ", authority.ErrUnsigned.Error(), authority.ErrSignature.Error(),
		highwater.ErrRolledBack.Error(), clusterstate.ErrForeign.Error()}, func(text string) bool {
		return strings.Contains(message, text)
	})
}

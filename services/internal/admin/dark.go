package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// bucketReader implements fleet.LastKnown. It opens the bucket of a command when the first leader does not answer. The
// reader is nil if the command has no bucket.
type bucketReader func() (*lastknown.Reader, error)

// Answer implements fleet.LastKnown.
func (open bucketReader) Answer(ctx context.Context, shard, tenant string, request proto.Message) (proto.Message,
	time.Time, error) {
	reader, err := open()
	if err != nil || reader == nil {
		return nil, time.Time{}, err
	}
	return reader.Answer(ctx, shard, tenant, request)
}

// lastKnown opens the bucket of a command. It returns nil if neither the command line nor the settings name one.
func (a *app) lastKnown(cmd *cobra.Command) (*lastknown.Reader, error) {
	s, err := a.storageOf(cmd)
	if err != nil || s.location.Bucket == "" {
		return nil, err
	}
	store, _, cancel, err := s.open(cmd.Context(), false)
	if err != nil {
		return nil, err
	}
	cancel() // the reader limits each answer
	return lastknown.New(lastknown.Options{Bucket: store, Own: s.opener(store), Now: a.Now, ForEach: tasks.ForEach,
		Timeout: s.timeout}), nil
}

// tellLastKnown says for which shards the answers are only what is last known. To the errors of shards about which
// nothing is known, it adds how to see more.
func tellLastKnown[T fleet.Result](a *app, s *scope, output format, answers []T) {
	for _, answer := range answers {
		o := answer.Of()
		e := o.Err
		if !e.NoAnswer() {
			continue
		}
		storage, err := a.storageOf(a.running)
		switch named := err == nil && storage.location.Bucket != ""; {
		case named:
			e.Hint = strings.ReplaceAll(e.Hint, " --storage-bucket BUCKET", "")
		case s.reader != nil:
			e.Hint = strings.TrimPrefix(e.Hint+"; with --storage-bucket, this command shows what is last known", "; ")
		}
		if o.LastKnown != nil && (output == "table" || output == "wide") {
			a.note("%s: last known, from the bucket, %s", o.Shard, a.clockTime(*o.LastKnown))
		}
	}
}

// clockTime returns a time with its age: without the date if it is less than a day ago.
func (a *app) clockTime(t time.Time) string {
	ago := a.Now().Sub(t)
	if ago.Abs() > 24*time.Hour {
		return stamp(t)
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.TimeOnly), age(a.Now(), t))
}

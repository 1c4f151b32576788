package admin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// bucketReader implements fleet.LastKnown. It opens the bucket of a command when the first leader does not answer.
type bucketReader struct {
	app *app
	cmd *cobra.Command

	once   sync.Once
	reader *lastknown.Reader
	err    error
}

// Answer implements fleet.LastKnown. It answers nothing if the command has no bucket.
func (b *bucketReader) Answer(ctx context.Context, shard, tenant string, request proto.Message) (proto.Message,
	time.Time, error) {
	b.once.Do(func() { b.reader, b.err = b.app.lastKnown(ctx, b.cmd) })
	if b.err != nil || b.reader == nil {
		return nil, time.Time{}, b.err
	}
	return b.reader.Answer(ctx, shard, tenant, request)
}

// lastKnown opens the bucket of a command. It returns nil if neither the command line nor the settings name one.
func (a *app) lastKnown(ctx context.Context, cmd *cobra.Command) (*lastknown.Reader, error) {
	s, err := a.storageOf(cmd)
	if err != nil || s.location.Bucket == "" {
		return nil, err
	}
	store, _, cancel, err := s.open(ctx, false)
	if err != nil {
		return nil, err
	}
	cancel()               // the reader limits each answer
	env, _ := tasks.Real() // ForEach waits for its own tasks
	return lastknown.New(lastknown.Options{Bucket: store, Own: s.opener(store), Now: a.Now, ForEach: env.ForEach,
		Timeout: s.timeout, Keep: keepAnswers}), nil
}

// keepAnswers is how long the page, the API and "top" show an answer of the bucket before they read it again.
const keepAnswers = 15 * time.Second

// tellLastKnown says for which shards the answers are only what is last known. To the errors of shards about which
// nothing is known, it adds how to see more.
func tellLastKnown[T fleet.Result](a *app, s *scope, output format, answers []T) {
	for _, answer := range answers {
		e := answer.Failure()
		if !e.NoAnswer() {
			continue
		}
		shard, at := answer.Known()
		storage, err := a.storageOf(a.running)
		switch named := err == nil && storage.location.Bucket != ""; {
		case named:
			e.Hint = strings.ReplaceAll(e.Hint, " --storage-bucket BUCKET", "")
		case s.reader != nil:
			e.Hint = strings.TrimPrefix(e.Hint+"; with --storage-bucket, this command shows what is last known", "; ")
		}
		if at != nil && (output == "table" || output == "wide") {
			a.note("%s: last known, from the bucket, %s", shard, a.clockTime(*at))
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

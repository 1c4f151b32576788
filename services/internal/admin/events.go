package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) eventsCommand() *cobra.Command {
	var follow bool
	var limit int
	var from since
	filter := new(nstancev1.EventFilter)
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened in shards, and follow what happens", Args: cobra.NoArgs,
		Long: fmt.Sprintf(`Prints events from the shards' journals, the newest last: changes of instances, groups and
configurations, alerts, and changes of the leader, with their reasons. Without --since, it
prints the newest %d of them. With --follow, it then prints new events as they happen,
until the command is interrupted. If a connection is lost, the command connects again, and
continues after the last event.

Each leader has the newest 10,000 events of its shard. Older ones are only in the bucket,
for 30 days (server.journal_retention). docs/reference/events.md lists the kinds and causes.

The table shows the end of an instance's ID, which other commands accept. The format "wide"
has the whole ID, the cause, the actor and the duration. With --follow, the formats json and
yaml print each event as one object with the shard; json prints it on one line.`, newest),
		Example: `  nstance-admin events --all-shards --follow
  nstance-admin events --since 1d --all-shards
  nstance-admin events --since 2026-11-29T02:00:00Z --kind instance_lost --all-shards
  nstance-admin events --instance wrk06bgm7733st2576nx5jht4ecjw
  nstance-admin events --follow --shard us-west-2a --output json |
    jq -r 'select(.kind == "instance_registered").instance_id'`,
	}
	cmd.Flags().Var(&from, "since",
		"print events since a time: that long ago, such as 90m or 1d, or 2026-11-29T02:00:00Z")
	cmd.Flags().IntVar(&limit, "limit", newest, "print only the newest events, this many; 0 and --since: all")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "then print new events as they happen")
	cmd.Flags().StringVar(&filter.Group, "group", "", "print events of this group")
	cmd.Flags().StringVar(&filter.InstanceId, "instance", "", "print events of this instance")
	cmd.Flags().StringSliceVar(&filter.Kinds, "kind", nil,
		"print events of this kind, such as instance_created; may be repeated")
	cmd.Flags().StringVar(&filter.Cause, "cause", "", "print events with this cause, such as unhealthy")
	s, f := readFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case limit < 0:
			return usageOf(cmd, fmt.Errorf("--limit %d is less than zero", limit))
		case from.text != "" && !cmd.Flags().Changed("limit"):
			limit = 0
		}
		filter.Since = from.time(a.Now())
		if !follow {
			return a.history(cmd, s, *f, limit, filter)
		}
		return a.followEvents(cmd.Context(), s, *f, limit, filter)
	}
	return cmd
}

// newest is the number of events that are shown by default.
const newest = 100

// since is a flag with a time in the past: how long ago, or the time itself.
type since struct {
	text string
	ago  time.Duration
	at   time.Time
}

func (s *since) String() string { return s.text }
func (s *since) Type() string   { return "time" }

// Set reads a time of RFC 3339, a date, or a duration, which may begin with a number of days.
func (s *since) Set(text string) (err error) {
	*s = since{text: text}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if s.at, err = time.Parse(layout, text); err == nil {
			return nil
		}
	}
	days, rest, found := strings.Cut(text, "d")
	n, err := strconv.ParseUint(days, 10, 16)
	if !found || err != nil {
		n, rest = 0, text
	}
	if rest != "" {
		s.ago, err = time.ParseDuration(rest)
	}
	if s.ago += time.Duration(n) * 24 * time.Hour; err != nil || s.ago < 0 {
		return errors.New("want a time ago, such as 90m, 6h or 1d, or a time, such as 2026-11-29T02:00:00Z")
	}
	return nil
}

// time returns the time, or nil if the flag is not given.
func (s *since) time(now time.Time) *timestamppb.Timestamp {
	switch {
	case s.text == "":
		return nil
	case s.at.IsZero():
		return timestamppb.New(now.Add(-s.ago))
	}
	return timestamppb.New(s.at)
}

// history prints the newest events of the shards' journals. A limit of zero means all.
func (a *app) history(cmd *cobra.Command, s *scope, f format, limit int, filter *nstancev1.EventFilter) error {
	return askWith(cmd.Context(), a, s, f, "reading the journal of", func(f *fleet.Fleet, ctx context.Context,
		shards []string) answers[*nstancev1.ListEventsResponse] {
		return newestEvents(fleet.Call(ctx, f, shards, fleet.Client.ListEvents,
			&nstancev1.ListEventsRequest{Filter: filter}), limit)
	}, a.writeHistory)
}

// newestEvents removes the events of all shards except the newest ones.
func newestEvents(answers answers[*nstancev1.ListEventsResponse],
	limit int) answers[*nstancev1.ListEventsResponse] {
	entries := entriesOf(answers)
	if limit == 0 || len(entries) <= limit {
		return answers
	}
	keep := map[*nstancev1.JournalEvent]bool{}
	for _, e := range entries[len(entries)-limit:] {
		keep[e.JournalEvent] = true
	}
	for _, answer := range answers {
		if m := answer.Message; m != nil {
			m.Events = slices.DeleteFunc(m.GetEvents(), func(e *nstancev1.JournalEvent) bool { return !keep[e] })
		}
	}
	return answers
}

// entriesOf returns the events of all shards, sorted by time.
func entriesOf(answers answers[*nstancev1.ListEventsResponse]) (entries []fleet.Entry) {
	for _, answer := range answers {
		for _, e := range answer.Message.GetEvents() {
			entries = append(entries, fleet.Entry{Shard: answer.Shard, JournalEvent: e})
		}
	}
	slices.SortStableFunc(entries, func(a, b fleet.Entry) int {
		return fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt()))
	})
	return entries
}

// writeHistory writes the events of all shards, sorted by time.
func (a *app) writeHistory(w io.Writer, answers answers[*nstancev1.ListEventsResponse]) error {
	entries := entriesOf(answers)
	if len(entries) == 0 {
		return a.none(fleet.Failed(answers), "There are no such events.")
	}
	return a.table(w, eventHead, rowsOf(entries, a.eventRow))
}

// followEvents prints the newest events of the shards' journals, and then new events until ctx ends.
func (a *app) followEvents(ctx context.Context, s *scope, f format, limit int, filter *nstancev1.EventFilter) error {
	conn, shards, err := a.connect(s)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	past := fleet.Call(ctx, conn, shards, fleet.Client.ListEvents, &nstancev1.ListEventsRequest{Filter: filter})
	after := map[string]string{}
	for _, answer := range past {
		if events := answer.Message.GetEvents(); len(events) > 0 {
			after[answer.Shard] = events[len(events)-1].GetPosition()
		}
	}
	var broken error // the reader has closed the output
	write := func(write func() error) {
		if err := write(); err != nil && broken == nil {
			broken = fmt.Errorf("write event: %w", err)
			cancel()
		}
	}
	columns := a.columns(eventHead)
	columns.fit([][]cell{a.eventRow(widest(shards))})
	each := func(head bool, entries ...fleet.Entry) {
		if f == "table" || f == "wide" {
			write(func() error { return columns.write(a.Stdout, head, rowsOf(entries, a.eventRow)) })
			return
		}
		for _, e := range entries {
			write(func() error { return a.writeEntry(f, e) })
		}
	}
	each(true, entriesOf(newestEvents(past, limit))...)
	failed := conn.FollowJournals(ctx, shards, filter, after, fleet.Watcher{
		Lost: func(err *fleet.Error, retry time.Duration) {
			text := err.Error()
			if retry > 0 {
				text += "; trying again"
			}
			a.complain(text, err.Hint)
		},
		Found: func(shard string) { a.note("shard %s: connected again", shard) },
	}, func(e fleet.Entry) { each(false, e) })
	if len(failed) > 0 { // already reported
		return fmt.Errorf("%d of %s could not be followed", len(failed), count(len(shards), "shard"))
	}
	return broken
}

// widest returns an event that makes the columns wide enough for most events.
func widest(shards []string) fleet.Entry {
	longest := slices.MaxFunc(shards, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	return fleet.Entry{Shard: longest, JournalEvent: &nstancev1.JournalEvent{Kind: "instance_pending_deletion",
		Group: "workers", InstanceId: "wrk06bgm7733st2576nx5jht4ecjw"}}
}

// writeEntry writes an event as one line of JSON, or as one document of YAML.
func (a *app) writeEntry(f format, e fleet.Entry) error {
	if f == "json" {
		enc := json.NewEncoder(a.Stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(e)
	}
	if _, err := fmt.Fprintln(a.Stdout, "---"); err != nil {
		return err
	}
	return a.show(f, e, nil)
}

// eventHead is the head of tables of events. Two columns are twice in it: short, and in full for the format "wide".
var eventHead = []string{"-TIME", "+TIME", "*SHARD", "EVENT", "GROUP", "-INSTANCE", "+INSTANCE", "+CAUSE", "+BY",
	"+TOOK", "WHY"}

func (a *app) eventRow(e fleet.Entry) []cell {
	replaces, short := "", e.GetInstanceId()
	if e.GetReplaces() != "" {
		replaces = "replaces " + e.GetReplaces()
	}
	if len(short) > shortID {
		short = "…" + short[len(short)-shortID:]
	}
	at := e.GetAt().AsTime()
	row := plain(at.Format("01-02 15:04:05.000"), at.Format("2006-01-02T15:04:05.000Z"), e.Shard,
		strings.ReplaceAll(e.GetKind(), "_", " "), e.GetGroup(), short, e.GetInstanceId(), e.GetCause(), e.GetActor(),
		tookText(e.GetTookSeconds()), join("  ", e.GetMessage(), replaces))
	switch e.GetKind() {
	case "instance_lost", "instance_unhealthy", "alert_raised", "registration_refused":
		row[3].paint = a.style.out.bad
	case "instance_registered", "instance_healthy", "alert_resolved":
		row[3].paint = a.style.out.good
	}
	return row
}

// shortID is the number of characters at the end of an instance's ID that a table of events shows.
const shortID = 5

// join joins the parts that are not empty.
func join(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), separator)
}

// tookText formats seconds with at most three significant digits. It returns "" for zero.
func tookText(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(seconds, 'g', 3, 64) + " s"
}

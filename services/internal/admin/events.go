package admin

import (
	"cmp"
	"context"
	"encoding/json"
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
	var changes bool
	var since time.Duration
	filter := new(nstancev1.EventFilter)
	cmd := &cobra.Command{
		Use: "events", Short: "Follow what happens in shards", Args: cobra.NoArgs,
		Long: `Prints the events of shards as they happen, until the command is interrupted: changes of
instances (creating, registered, unhealthy, pending deletion …), changes of groups, and
errors. The output begins with the current state. If a connection is lost, the command
connects again and prints the new current state.

With --since, --group, --instance, --kind or --cause, "events" does not wait for new
events: it prints past events from the shards' journals, with their times, reasons and
causes, and ends. Each leader has the newest 10,000 events of its shard. Older ones are
only in the bucket, for 30 days (server.journal_retention).

With --output json, "events" prints each event as one object on one line, with the shard and
one of group_event, instance_event and error_event. The field "at" is the time on the
server's clock. The first events describe the current groups and instances, and have
"snapshot": true. An event of the type TYPE_SNAPSHOT_END ends the list of groups, and
another one ends the list of instances.`,
		Example: `  nstance-admin events --all-shards
  nstance-admin events --since 2h --all-shards
  nstance-admin events --instance wrk06bgm7733st2576nx5jht4ecjw --shard us-west-2a
  nstance-admin events --shard us-west-2a --changes --output json |
    jq -r '.instance_event | select(.type == "TYPE_REGISTERED").instance.instance_id'`,
	}
	cmd.Flags().BoolVar(&changes, "changes", false, "print only changes, not the state at the beginning")
	cmd.Flags().DurationVar(&since, "since", 0, "print events that are not older than this, such as 2h")
	cmd.Flags().StringVar(&filter.Group, "group", "", "print events of this group")
	cmd.Flags().StringVar(&filter.InstanceId, "instance", "", "print events of this instance")
	cmd.Flags().StringSliceVar(&filter.Kinds, "kind", nil,
		"print events of this kind, such as instance_created; may be repeated")
	cmd.Flags().StringVar(&filter.Cause, "cause", "", "print events with this cause, such as unhealthy")
	s := scopeFlags(cmd)
	f := outputFlag(cmd)
	cmd.Flags().Lookup(
		"output").Usage = "output format: table, json (an object on each line) or yaml (a document for each)"
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"since", "group", "instance", "kind", "cause"} {
			if changes && cmd.Flags().Changed(name) {
				return &usageError{err: fmt.Errorf("--changes follows new events, but --%s prints the journal", name),
					hint: "leave one of them out"}
			}
		}
		if since != 0 || filter.Group+filter.InstanceId+filter.Cause != "" || len(filter.Kinds) > 0 {
			return a.history(cmd, s, *f, since, filter)
		}
		conn, shards, err := a.connect(s)
		if err != nil {
			return err
		}
		defer conn.Close()
		return a.followEvents(cmd.Context(), conn, shards, *f, changes)
	}
	return cmd
}

func (a *app) followEvents(ctx context.Context, conn *fleet.Fleet, shards []string, f format, changes bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var broken error
	failed := conn.FollowShards(ctx, shards, fleet.Watcher{
		Event: func(e fleet.Event) {
			if changes && e.Snapshot || broken != nil {
				return
			}
			if err := a.writeEvent(f, e); err != nil {
				broken = fmt.Errorf("write event: %w", err) // the reader has closed the output
				cancel()
			}
		},
		Lost: func(err *fleet.Error, retry time.Duration) {
			text := err.Error()
			if retry > 0 {
				text += "; trying again"
			}
			a.complain(text, err.Hint)
		},
		Found: func(shard string) { a.note("shard %s: connected again", shard) },
	})
	if len(failed) > 0 { // already reported
		return fmt.Errorf("%d of %s could not be followed", len(failed), count(len(shards), "shard"))
	}
	return broken
}

func (a *app) writeEvent(f format, e fleet.Event) error {
	switch f {
	case "json":
		enc := json.NewEncoder(a.Stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(e)
	case "yaml":
		if _, err := fmt.Fprintln(a.Stdout, "---"); err != nil {
			return err
		}
		return a.show(f, e, nil)
	}
	text, ok := a.eventText(e)
	if !ok {
		return nil
	}
	// Group events have no time.
	when := cmp.Or(fleet.Time(cmp.Or(e.Instance.Of.GetAt(), e.Error.Of.GetAt())), a.Now())
	_, err := fmt.Fprintf(a.Stdout, "%s  %s  %s\n", a.style.out.dim(when.UTC().Format("15:04:05.000")), e.Shard, text)
	return err
}

// eventText describes an event in one line. ok is false for an event that the command does not print.
func (a *app) eventText(e fleet.Event) (text string, ok bool) {
	p := a.style.out
	paint := func(text string) string { return text }
	var kind, what string
	switch g, i := e.Group.Of.GetStatus(), e.Instance.Of; {
	case e.Error.Of.GetResolved():
		kind, paint = "resolved", p.good
	case e.Error.Of != nil:
		kind, paint = "error", p.bad
	case g != nil:
		kind, what = "group", join(g.GetGroup(), fmt.Sprintf("size %d, %d there, %d healthy", g.GetSize(),
			g.GetActualSize(), g.GetHealthy()), note(g))
	case e.Group.Of.GetType() == nstancev1.GroupEvent_TYPE_DELETE:
		kind, what = "group deleted", e.Group.Of.GetGroup()
	case e.Group.Of != nil, i.GetType() == nstancev1.InstanceEvent_TYPE_SNAPSHOT_END:
		return "", false
	default:
		kind = strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(i.GetType().String(), "TYPE_"), "_", " "))
		replaces, until := "", ""
		if i.GetReplaces() != "" {
			replaces = "replaces " + i.GetReplaces()
		}
		if i.GetDrain() {
			until = "drain until " + stamp(fleet.Time(i.GetDeadline()))
		}
		what = join(i.GetInstance().GetGroup(), i.GetInstance().GetInstanceId(), replaces, until, i.GetReason())
	}
	switch e.Instance.Of.GetType() {
	case nstancev1.InstanceEvent_TYPE_HEALTHY, nstancev1.InstanceEvent_TYPE_REGISTERED:
		paint = p.good
	case nstancev1.InstanceEvent_TYPE_UNHEALTHY, nstancev1.InstanceEvent_TYPE_LOST:
		paint = p.bad
	case nstancev1.InstanceEvent_TYPE_PENDING_DELETION, nstancev1.InstanceEvent_TYPE_NOTICE:
		paint = p.warn
	}
	if err := e.Error.Of; err != nil {
		what = join(err.GetKind(), err.GetGroup(), err.GetInstanceId(), err.GetMessage())
	}
	return paint(fmt.Sprintf("%-16s", kind)) + "  " + printable(what), true
}

// join joins the parts that are not empty.
func join(parts ...string) string {
	var out []string
	for _, part := range parts {
		if part != "" {
			out = append(out, part)
		}
	}
	return strings.Join(out, "  ")
}

// history prints the journals of shards.
func (a *app) history(cmd *cobra.Command, s *scope, f format, since time.Duration,
	filter *nstancev1.EventFilter) error {
	if since < 0 {
		return usageOf(cmd, fmt.Errorf("--since %s is less than zero", since))
	}
	if since > 0 {
		filter.Since = timestamppb.New(a.Now().Add(-since))
	}
	return ask(cmd.Context(), a, s, f, "reading the journal of", fleet.Client.ListEvents,
		&nstancev1.ListEventsRequest{Filter: filter}, a.writeHistory)
}

// writeHistory writes the events of all shards, sorted by time.
func (a *app) writeHistory(w io.Writer, answers answers[*nstancev1.ListEventsResponse]) error {
	type entry struct {
		shard string
		*nstancev1.JournalEvent
	}
	var entries []entry
	for _, answer := range answers {
		for _, e := range answer.Message.GetEvents() {
			entries = append(entries, entry{answer.Shard, e})
		}
	}
	if len(entries) == 0 {
		return a.none(fleet.Failed(answers), "There are no such events.")
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return fleet.Time(a.GetAt()).Compare(fleet.Time(b.GetAt())) })
	var rows [][]cell
	for _, e := range entries {
		replaces := ""
		if e.GetReplaces() != "" {
			replaces = "replaces " + e.GetReplaces()
		}
		row := plain(e.GetAt().AsTime().Format("2006-01-02T15:04:05.000Z"), e.shard,
			strings.ReplaceAll(e.GetKind(), "_", " "), e.GetGroup(), e.GetInstanceId(), e.GetCause(), e.GetActor(),
			tookText(e.GetTookSeconds()), join(e.GetMessage(), replaces))
		switch e.GetKind() {
		case "instance_lost", "instance_unhealthy", "alert_raised", "registration_refused":
			row[2].paint = a.style.out.bad
		case "instance_registered", "instance_healthy", "alert_resolved":
			row[2].paint = a.style.out.good
		}
		rows = append(rows, row)
	}
	return a.table(w, []string{"TIME", "SHARD", "EVENT", "GROUP", "INSTANCE", "CAUSE", "BY", "TOOK",
		"WHY"}, rows)
}

// tookText formats seconds with at most three significant digits. It returns "" for zero.
func tookText(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return strconv.FormatFloat(seconds, 'g', 3, 64) + " s"
}

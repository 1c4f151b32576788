package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) eventsCommand() *cobra.Command {
	var changes bool
	var since time.Duration
	var filter fleet.HistoryFilter
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

With --output json, "events" prints each event as one object on one line. The field "at" is
the time on the server's clock. The first events describe the current groups and instances,
and have "snapshot": true. An event of the type snapshot_end ends the list of groups, and
another one ends the list of instances.`,
		Example: `  nstance-admin events --all-shards
  nstance-admin events --since 2h --all-shards
  nstance-admin events --instance wrk06bgm7733st2576nx5jht4ecjw --shard us-west-2a
  nstance-admin events --shard us-west-2a --changes --output json | jq -r 'select(.type == "registered").instance_id'`,
	}
	cmd.Flags().BoolVar(&changes, "changes", false, "print only changes, not the state at the beginning")
	cmd.Flags().DurationVar(&since, "since", 0, "print events that are not older than this, such as 2h")
	cmd.Flags().StringVar(&filter.Group, "group", "", "print events of this group")
	cmd.Flags().StringVar(&filter.InstanceID, "instance", "", "print events of this instance")
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
		if since != 0 || filter.Group+filter.InstanceID+filter.Cause != "" || len(filter.Kinds) > 0 {
			return a.history(cmd, s, *f, since, filter)
		}
		conn, err := a.fleet(s)
		if err != nil {
			return err
		}
		defer conn.Close()
		shards, err := a.shards(s, conn)
		if err != nil {
			return err
		}
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
		return fmt.Errorf("%d of %d shards could not be followed", len(failed), len(shards))
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
	when := e.At
	if when.IsZero() {
		when = a.Now() // group events have no time
	}
	_, err := fmt.Fprintf(a.Stdout, "%s  %s  %s\n", a.style.out.dim(when.UTC().Format("15:04:05.000")), e.Shard, text)
	return err
}

// eventText describes an event in one line. ok is false for an event that the command does not print.
func (a *app) eventText(e fleet.Event) (text string, ok bool) {
	kind := fmt.Sprintf("%-16s", strings.ReplaceAll(e.Type, "_", " "))
	p := a.style.out
	switch e.Type {
	case "snapshot_end":
		return "", false
	case "healthy", "registered", "resolved":
		kind = p.good(kind)
	case "unhealthy", "lost", "error":
		kind = p.bad(kind)
	case "pending_deletion", "notice":
		kind = p.warn(kind)
	}
	var what string
	switch {
	case e.GroupStatus != nil:
		g := e.GroupStatus
		kind = fmt.Sprintf("%-16s", "group")
		what = join(g.Name, fmt.Sprintf("size %d, %d there, %d healthy", g.Size, g.ActualSize, g.Healthy), note(*g))
	case e.Stream == "group":
		kind = fmt.Sprintf("%-16s", "group deleted")
		what = e.Group
	default:
		replaces, until := "", ""
		if e.Replaces != "" {
			replaces = "replaces " + e.Replaces
		}
		if e.Drain {
			until = "drain until " + stamp(e.Deadline)
		}
		what = join(e.Kind, e.Group, e.ID, replaces, until, e.Reason)
	}
	return kind + "  " + printable(what), true
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

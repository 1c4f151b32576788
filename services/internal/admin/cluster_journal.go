package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// clusterJournalRetention is how long entries of the cluster's journal stay in the bucket.
const clusterJournalRetention = 30 * 24 * time.Hour

// journalChange writes an entry to the cluster's journal about a change that this command has made in the bucket. It
// also deletes entries whose retention is over. If either fails, it only prints a warning, because the change itself
// has been made.
func (a *app) journalChange(ctx context.Context, bucket objstore.Store, e record.ClusterEvent) {
	e.Schema, e.At, e.Actor = record.ClusterEventSchema, a.Now().UTC(), a.actor()
	writer, err := a.writer()
	if err == nil {
		var body []byte
		if body, err = e.Encode(); err == nil {
			_, err = bucket.Put(ctx, keys.ClusterJournal(e.At, strings.TrimPrefix(writer, "nstance-admin-")), body,
				objstore.IfAbsent())
		}
	}
	if err != nil {
		a.note("Warning: the change is made, but the cluster's journal does not have it: %v", err)
		return
	}
	if err := pruneClusterJournal(ctx, bucket, e.At.Add(-clusterJournalRetention)); err != nil {
		a.note("Warning: old entries of the cluster's journal are still there: %v", err)
	}
}

// pruneClusterJournal deletes the journal entries from before the given time.
func pruneClusterJournal(ctx context.Context, bucket objstore.Store, before time.Time) error {
	entries, err := bucket.List(ctx, keys.ClusterJournalPrefix())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err != nil {
			continue // cluster verify reports unknown objects
		}
		if !key.Time.Before(before) {
			return nil // the rest is newer: entries sort by time
		}
		if err := bucket.Delete(ctx, entry.Key); err != nil {
			return err
		}
	}
	return nil
}

// actor returns the names of the user and the machine, as this machine reports them.
func (a *app) actor() string {
	machine, err := os.Hostname()
	if err != nil {
		machine = "unknown machine"
	}
	return cmp.Or(a.Getenv("USER"), a.Getenv("LOGNAME"), "unknown user") + " at " + machine
}

func (a *app) clusterJournalCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "journal", Short: "List the changes that commands made in the bucket", Args: cobra.NoArgs,
		Long: `Lists what "cluster" commands and "config push" have changed in the bucket: secrets,
keys, registrations and configurations. Each entry has the time of the change, and the
names of the user and the machine. Entries are in cluster/journal/. A command
that adds an entry deletes entries that are older than 30 days.

The cluster's journal does not list calls that operators make to servers, for example to
scale a group. "nstance-admin events --since 24h" shows these calls, from the shards'
journals.`,
		Example: `  nstance-admin cluster journal --since 168h --storage-bucket my-bucket`,
	}
	var since time.Duration
	cmd.Flags().DurationVar(&since, "since", 0, "only entries that are not older than this, such as 168h")
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if since < 0 {
			return usagef("--since %s is less than zero", since)
		}
		bucket, ctx, cancel, err := s.open(cmd.Context(), false)
		if err != nil {
			return err
		}
		defer cancel()
		var from time.Time
		if since > 0 {
			from = a.Now().Add(-since)
		}
		events, err := readClusterJournal(ctx, bucket, from)
		if err != nil {
			return err
		}
		return showAll(a, *f, map[string]any{"events": events}, events, "There are no such entries.",
			[]string{"TIME", "CHANGE", "OF", "TENANT", "BY", ""}, func(e record.ClusterEvent) []cell {
				return plain(stamp(e.At), strings.ReplaceAll(e.Kind, "_", " "), cmp.Or(e.Subject, e.Shard), e.Tenant,
					e.Actor, e.Message)
			})
	}
	return cmd
}

// readClusterJournal returns the journal's entries since the time `from`, the oldest entry first.
func readClusterJournal(ctx context.Context, bucket objstore.Store, from time.Time) ([]record.ClusterEvent, error) {
	entries, err := bucket.List(ctx, keys.ClusterJournalPrefix())
	if err != nil {
		return nil, fmt.Errorf("list the cluster's journal: %w", err)
	}
	events := []record.ClusterEvent{}
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err != nil || key.Time.Before(from) {
			continue // cluster verify reports unknown objects
		}
		object, err := bucket.Get(ctx, entry.Key)
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the cluster's journal: %w", err)
		}
		e, err := record.Decode[record.ClusterEvent](object.Body)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Key, err)
		}
		events = append(events, e)
	}
	return events, nil
}

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// restoration is the result of the command `cluster restore`.
type restoration struct {
	Cluster string          `json:"cluster_id"`
	Bucket  string          `json:"bucket"`
	Shards  []restoredShard `json:"shards"`
}

// restoredShard is what `cluster restore` found and did in one shard.
type restoredShard struct {
	Shard string `json:"shard"`
	// Home is the home of the shard before the command; "" if it had none.
	Home string `json:"home_before"`
	// Lock describes the lock.
	Lock string `json:"lock"`
	// Restored is false if the shard's home was restored before, and its orphans still wait.
	Restored bool `json:"restored"`

	lock record.Lock
}

func (a *app) restoreCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore", Short: "Let servers lead in a bucket that was restored or copied", Args: cobra.NoArgs,
		Long: `Makes the bucket in --storage-bucket the home of the cluster's shards. Each shard's home
is the bucket in which its servers may lead (shard/{shard}/home.json). A copy of a bucket
contains the home of the original, so servers that use a copy do not lead. Run this command
after you have restored a snapshot, copied a bucket, or given it another name or endpoint.

After the command, servers that use the bucket lead the shards, and manage the VMs that
have the shards' tags. If servers of the original bucket still run, and both reach the same
cloud account or hosts, they delete each other's VMs. So stop the servers of the original
first, for good, or give the servers of the copy credentials of another account.

After the command, no leader terminates a VM without a record before you confirm that with
"nstance-admin orphans confirm", even if there is only one such VM.

Before it changes anything, "cluster restore" watches the locks of the shards until a leader
would have renewed them: 40 seconds by default. If a lock is renewed, the command fails,
because a server leads in this bucket. You can run "cluster restore" again at any time.`,
		Example: `  nstance-admin cluster restore --storage-bucket my-copy
  nstance-admin cluster restore --storage-bucket my-copy --dry-run`,
	}
	f, confirm := outputFlag(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		examine := func(ctx context.Context, c *cluster) (restoration, error) { return a.examineHomes(ctx, s, c) }
		found, err := inCluster(cmd.Context(), a, s, need{}, examine)
		if err != nil {
			return err
		}
		if len(found.Shards) == 0 {
			return withHint(errors.New("the bucket has no shard"), "check --storage-bucket and --storage-prefix")
		}
		if err := a.watchLocks(cmd.Context(), found.Shards, func() ([]restoredShard, error) {
			now, err := inCluster(cmd.Context(), a, s, need{}, examine)
			return now.Shards, err
		}); err != nil {
			return err
		}
		var names []string
		for _, shard := range found.Shards {
			if shard.Restored {
				names = append(names, shard.Shard)
			}
		}
		if len(names) > 0 {
			done, err := a.confirm(cmd, confirm, fmt.Sprintf("servers lead shard %s of cluster %s in %s, and manage "+
				"the VMs with the tags of these shards", strings.Join(names, ", "), found.Cluster, found.Bucket))
			if done || err != nil {
				return err
			}
			err = a.withCluster(cmd.Context(), s, need{}, func(ctx context.Context, c *cluster) error {
				return a.restoreHomes(ctx, c, names)
			})
			if err != nil {
				return err
			}
		}
		return a.show(*f, found, func(w io.Writer) error { return a.writeRestoration(w, found) })
	}
	return cmd
}

// shardsIn returns the shards that have objects in the bucket.
func shardsIn(ctx context.Context, bucket objstore.Store) ([]string, error) {
	var shards []string
	for _, prefix := range []string{keys.ConfigPrefix(), keys.ShardsPrefix()} {
		entries, err := bucket.List(ctx, prefix)
		if err != nil {
			return nil, fmt.Errorf("list the bucket: %w", err)
		}
		for _, entry := range entries {
			if key, err := keys.Parse(entry.Key); err == nil && key.Kind != keys.KindProbe {
				shards = append(shards, key.Shard)
			}
		}
	}
	slices.Sort(shards)
	return slices.Compact(shards), nil
}

// examineHomes reads the homes and locks of all shards.
func (a *app) examineHomes(ctx context.Context, s *secretFlags, c *cluster) (restoration, error) {
	at, err := open.Canonical(ctx, s.location)
	if err != nil {
		return restoration{}, err
	}
	here := clusterstate.BucketAt(at)
	found := restoration{Cluster: c.id, Bucket: here.String(), Shards: []restoredShard{}}
	shards, err := shardsIn(ctx, c.bucket)
	if err != nil {
		return found, err
	}
	for _, name := range shards {
		shard := restoredShard{Shard: name, Restored: true}
		state := clusterstate.New(clusterstate.Options{Shard: c.bucket, ShardID: name, Now: a.Now})
		home, _, err := state.ReadHome(ctx)
		switch {
		case err == nil:
			shard.Home, shard.Restored = home.String(), !home.OrphansWait || !home.MayBe(here)
		case !errors.Is(err, objstore.ErrNotFound):
			return found, err
		}
		lock, _, err := state.ReadLock(ctx, name)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			shard.Lock = "none"
		case err != nil:
			return found, err
		case lock.Released:
			shard.Lock = "released by " + lock.LeaderID
		default:
			shard.lock, shard.Lock = lock, fmt.Sprintf("%s renewed it %s ago", lock.LeaderID,
				a.Now().Sub(lock.RenewedAt).Round(time.Second))
		}
		found.Shards = append(found.Shards, shard)
	}
	return found, nil
}

// watchSteps is how often watchLocks reads the locks.
const watchSteps = 8

// watchLocks returns an error if a leader renews a lock within the time between two renewals, and a quarter more. The
// function `read` reads the locks again.
func (a *app) watchLocks(ctx context.Context, found []restoredShard, read func() ([]restoredShard, error)) error {
	var watch time.Duration
	for _, shard := range found {
		if shard.lock.Term > 0 {
			watch = max(watch, shard.lock.Renew()*5/4+2*time.Second)
		}
	}
	if watch == 0 {
		return nil
	}
	return during(a, "watching the locks for "+watch.Round(time.Second).String(), func() error {
		for range watchSteps {
			if err := a.sleep(ctx, watch/watchSteps); err != nil {
				return err
			}
			now, err := read()
			if err != nil {
				return err
			}
			for _, shard := range now {
				i := slices.IndexFunc(found, func(f restoredShard) bool { return f.Shard == shard.Shard })
				if shard.lock.Term == 0 || i >= 0 && shard.lock.Version() == found[i].lock.Version() {
					continue
				}
				return withHint(fmt.Errorf("%s has renewed the lock of shard %s meanwhile: it leads in this bucket",
					shard.lock.LeaderID, shard.Shard), "check --storage-bucket; if it is right, the shard needs no "+
					"restore. If a replication still writes to this bucket, stop the replication first")
			}
		}
		return nil
	})
}

// restoreHomes makes the bucket the home of the named shards.
func (a *app) restoreHomes(ctx context.Context, c *cluster, shards []string) error {
	for _, name := range shards {
		state := clusterstate.New(clusterstate.Options{Shard: c.bucket, ShardID: name, Now: a.Now})
		if err := state.RestoreHome(ctx); err != nil {
			return err
		}
	}
	a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "bucket_restored", Subject: strings.Join(shards, ", ")})
	return nil
}

func (a *app) writeRestoration(w io.Writer, r restoration) error {
	rows := rowsOf(r.Shards, func(shard restoredShard) []cell {
		result := map[bool]string{true: "restored", false: "was restored before"}[shard.Restored]
		return plain(shard.Shard, cmp.Or(shard.Home, "none"), shard.Lock, result)
	})
	if _, err := fmt.Fprintf(w, "Cluster %s in %s\n\n", r.Cluster, r.Bucket); err != nil {
		return err
	}
	if err := a.table(w, []string{"SHARD", "HOME BEFORE", "LOCK", "RESULT"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\nServers that use this bucket may lead now. VMs without a record wait for "+
		"nstance-admin orphans confirm.")
	return err
}

// checkHome checks that servers may lead in the bucket. `led` means that a server renews the lock.
func (a *app) checkHome(ctx context.Context, state *clusterstate.State, location objstore.Location, led bool) finding {
	const check, next = "home of the shard", "if this bucket is a copy, stop the servers that use it; to let them " +
		"lead here instead of in the original, run nstance-admin cluster restore (docs/how-to/restore-elsewhere.md)"
	home, _, err := state.ReadHome(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return finding{check, ok, "not known yet: the next leader writes it", ""}
	}
	if err != nil {
		return finding{check, problem, err.Error(), a.nextFor(err, "restore the object from the bucket's versions")}
	}
	at, err := open.Canonical(ctx, location)
	if err != nil {
		return finding{check, problem, err.Error(), a.nextFor(err, "check --storage-bucket")}
	}
	here := clusterstate.BucketAt(at)
	waits := ""
	if home.OrphansWait {
		waits = "; after the restore at " + stamp(home.RestoredAt) + ", orphans wait for a confirmation"
	}
	switch {
	case home.Is(here):
		return finding{check, ok, "is this bucket" + waits, ""}
	case home.MayBe(here) && led:
		return finding{check, ok, "is this bucket, which servers reach as " + home.String() + waits, ""}
	}
	return finding{check, problem, fmt.Sprintf("is %s, but this is %s: servers do not lead here", home, here), next}
}

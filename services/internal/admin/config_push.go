package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

func (a *app) configPushCommand() *cobra.Command {
	var b bucketFlags
	var wantShard, wantETag string
	var refresh bool
	s := new(scope)
	cmd := &cobra.Command{
		Use: "push FILE", Short: "Check a configuration and write it to the bucket", Args: cobra.ExactArgs(1),
		Long: `Checks a configuration file and writes it to config/{shard}.jsonc in the bucket. Use it in
clusters without Terraform. The file itself names the shard. The command writes nothing if
the file is not valid, lacks a template or setting that a dynamic group needs, or is for
another cluster. It also writes nothing if another program changes the configuration in the
bucket at the same time.

Like "config plan", "config push" shows what the change does to running instances, and
whether the leader restarts. On a terminal, it asks for a confirmation. Without a terminal,
it needs --yes in two cases. In the first, the change replaces or deletes instances. In the
second, the effects are unknown, because the bucket has only an invalid configuration, and
no leader has applied a valid one.

With --refresh the shard's leader applies the configuration immediately.`,
		Example: `  nstance-admin config push us-west-2a.jsonc --storage-bucket my-bucket
  nstance-admin config push us-west-2a.jsonc --storage-bucket my-bucket --refresh --yes`,
	}
	cmd.Flags().StringVar(&wantShard, "shard", "", "fail unless the file is of this shard")
	cmd.Flags().StringVar(&wantETag, "expected-etag", "",
		"fail unless the configuration in the bucket has this ETag (see config status)")
	cmd.Flags().BoolVar(&refresh, "refresh", false, "make the shard's leader apply the configuration now")
	confirm := confirmFlags(cmd)
	b.add(cmd)
	s.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, shard, problems, err := a.readConfig(args[0])
		if err != nil {
			return err
		}
		for _, p := range problems {
			a.note("%s", p)
		}
		switch {
		case shard == nil:
			return invalid(args[0], problems)
		case wantShard != "" && wantShard != shard.Server.Shard:
			return withHint(fmt.Errorf("%s is of shard %s, not of %s", args[0], shard.Server.Shard, wantShard),
				"push the file of that shard, or leave --shard out")
		}
		if refresh { // fail before anything is written
			f, err := a.fleet(s)
			if err != nil {
				return err
			}
			defer f.Close()
			s.shard = shard.Server.Shard
			if _, err := a.shards(s, f); err != nil {
				return err
			}
		}
		c := compared{name: shard.Server.Shard, file: body, after: shard}
		if done, err := a.push(cmd, &b, confirm, c, wantETag); err != nil || done {
			return err
		}
		if !refresh {
			a.note("The leader reads it within 10 s. nstance-admin config refresh makes it read it now.")
			return nil
		}
		return a.refresh(cmd.Context(), s, "table")
	}
	return cmd
}

// push writes a configuration to the bucket after a confirmation. In a dry run, push writes nothing and returns done =
// true.
func (a *app) push(cmd *cobra.Command, b *bucketFlags, confirm *confirmation, c compared, wantETag string) (done bool,
	err error) {
	bucket, ctx, cancel, err := b.open(cmd.Context(), true)
	if err != nil {
		return false, err
	}
	defer cancel()
	var had objstore.Token
	err = a.during("reading from "+b.location.Bucket, func() (err error) {
		had, err = a.checkPush(ctx, bucket, &c, wantETag)
		return err
	})
	if err != nil {
		return false, err
	}
	plan := planOf(c)
	if plan.Unchanged {
		return confirm.dryRun, a.line("%s: the same configuration is there already (%s)", c.name, had)
	}
	if had != "" || confirm.dryRun { // otherwise nothing runs yet
		plan.write(a.Stderr)
		what := "the configuration of shard " + c.name + " is written"
		if done, err := a.confirmChange(cmd, confirm, plan.New || plan.destructive, what); done || err != nil {
			return done, err
		}
	}
	ctx, cancel = context.WithTimeout(cmd.Context(), b.timeout) // the answer may have taken long
	defer cancel()
	return false, a.during("writing to "+b.location.Bucket, func() error {
		return a.writePush(ctx, bucket, c, had)
	})
}

// checkPush reads the stored configuration into c and returns its token, which is its ETag. It rejects a push if
// wantETag is another ETag, if the file is for another cluster, or if the file removes what a dynamic group needs.
func (a *app) checkPush(ctx context.Context, bucket objstore.Store, c *compared, wantETag string) (objstore.Token,
	error) {
	state := a.shardState(bucket, c.after)
	stored, had, err := state.ReadConfig(ctx, c.name)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return "", err
	}
	if wantETag != "" && string(had) != wantETag {
		return "", withHint(fmt.Errorf("the configuration of shard %s has the ETag %q, not %q", c.name, had, wantETag),
			"another program wrote it; read the current one and push again")
	}
	c.stored = stored
	c.parseBefore(ctx, state)
	if c.before != nil && c.before.Cluster.ID != c.after.Cluster.ID {
		return "", withHint(fmt.Errorf("the bucket holds shard %s of cluster %s, the file is of cluster %s", c.name,
			c.before.Cluster.ID, c.after.Cluster.ID), "check --storage-bucket and --storage-prefix")
	}
	return had, checkDynamic(ctx, state, c.after)
}

// writePush writes the file's configuration to the bucket if the stored configuration still has the token `had`.
func (a *app) writePush(ctx context.Context, bucket objstore.Store, c compared, had objstore.Token) error {
	token, err := a.shardState(bucket, c.after).WriteConfig(ctx, c.name, c.file, had)
	if errors.Is(err, objstore.ErrConflict) {
		return withHint(err, "another program wrote it at the same time; read the current one and push again")
	}
	if err != nil {
		return err
	}
	a.journalChange(ctx, bucket, record.ClusterEvent{Kind: "config_pushed", Shard: c.name,
		Message: fmt.Sprintf("ETag %s, %d bytes", token, len(c.file))})
	return a.line("%s: written, %d bytes (%s)", c.name, len(c.file), token)
}

func (a *app) shardState(bucket objstore.Store, shard *config.Shard) *clusterstate.State {
	return clusterstate.New(clusterstate.Options{Shard: bucket, ClusterID: shard.Cluster.ID,
		ShardID: shard.Server.Shard, Now: a.Now, Rand: a.Rand})
}

// checkDynamic rejects a configuration that removes something that a dynamic group of the shard needs.
func checkDynamic(ctx context.Context, state *clusterstate.State, shard *config.Shard) error {
	groups, _, _, err := state.ReadGroups(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, problems := shard.Merged(groups); problems.Err() != nil {
		return withHint(fmt.Errorf("groups that were made at run time cannot do without what the file leaves out:\n%w",
			problems.Err()), "keep what they need, or delete the groups first: nstance-admin group delete")
	}
	return nil
}

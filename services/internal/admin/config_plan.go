package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// compared holds two configurations of a shard: the stored one in the bucket, and a new one in a file.
type compared struct {
	name         string
	stored, file []byte
	// before is nil if the bucket has no valid configuration.
	before, after *config.Shard
	// overrides holds the values of static groups that operators set at run time. It is empty if they cannot be read.
	overrides config.Groups
	// applied is set if the stored configuration is not valid. `before` is then the configuration that a leader applied
	// last.
	applied bool
}

// parseBefore parses the stored configuration, and reads what operators set at run time. If that is not valid,
// parseBefore takes the configuration that a leader applied last. It does not check the signature of the applied
// configuration, which is used only to describe a change.
func (c *compared) parseBefore(ctx context.Context, state *clusterstate.State) {
	c.overrides, _, _, _ = state.ReadGroups(ctx)
	if c.before, _ = config.ParseStored(c.name, c.stored); c.before != nil || c.stored == nil {
		return
	}
	if applied, err := state.UnverifiedApplied(ctx); err == nil {
		c.before, _ = config.ParseApplied(c.name, applied.Body)
		c.applied = c.before != nil
	}
}

// compare reads a file and the configuration of its shard in the bucket.
func (a *app) compare(ctx context.Context, b *bucketFlags, path string) (compared, error) {
	body, after, problems, err := a.readConfig(path)
	if err != nil {
		return compared{}, err
	}
	if after == nil {
		for _, p := range problems {
			a.note("%s", p)
		}
		return compared{}, invalid(path, problems)
	}
	out := compared{name: after.Server.Shard, file: body, after: after}
	bucket, ctx, cancel, err := b.open(ctx, false)
	if err != nil {
		return compared{}, err
	}
	defer cancel()
	state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ShardID: out.name})
	err = a.during("reading from "+b.location.Bucket, func() error {
		out.stored, _, err = state.ReadConfig(ctx, out.name)
		if errors.Is(err, objstore.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return compared{}, err
	}
	out.parseBefore(ctx, state)
	return out, nil
}

// configPlan describes the effects of a new configuration.
type configPlan struct {
	Shard string `json:"shard"`
	// Unchanged means that the bucket already has exactly this configuration.
	Unchanged bool `json:"unchanged"`
	// New means that the bucket has no valid configuration of the shard.
	New bool `json:"new"`
	// ComparedWithApplied means that the newest configuration is not valid, so the effects are relative to the applied
	// configuration.
	ComparedWithApplied bool `json:"compared_with_applied,omitempty"`

	RollingGroups []string `json:"rolling_groups"` // as the Terraform provider's attribute
	Effects       []string `json:"effects"`        // on running instances, in words
	// RestartingSettings are the changed settings that make the leader restart.
	RestartingSettings []string `json:"restarting_settings"`
	// destructive means that the change replaces or deletes instances.
	destructive bool
}

// planOf returns the effects of the configuration in the file. The lists of effects are empty if the configuration
// before or after the change is missing or invalid.
func planOf(c compared) configPlan {
	plan := configPlan{Shard: c.name, Unchanged: string(c.stored) == string(c.file), New: c.before == nil,
		ComparedWithApplied: c.applied, RollingGroups: []string{}, Effects: []string{},
		RestartingSettings: []string{}}
	if c.before != nil && c.after != nil {
		change := config.ChangeOf(c.before, c.after, false)
		plan.RollingGroups = append(plan.RollingGroups, change.Rolling()...)
		plan.destructive = change.Destructive()
		plan.RestartingSettings = append(plan.RestartingSettings,
			config.Restarting(c.before.WithDefaults(), c.after.WithDefaults())...)
		if _, detail := change.Warning(); detail != "" {
			plan.Effects = strings.Split(detail, "\n")
		}
		plan.Effects = append(plan.Effects, config.Overridden(c.before, c.after, c.overrides)...)
	}
	return plan
}

func (a *app) configPlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan FILE", Short: "Show what a configuration would do to running instances", Args: cobra.ExactArgs(1),
		Long: `Compares a configuration file with the shard's configuration in the bucket, and changes
nothing. For each group, the command shows whether the change would replace instances, send
them new files, or delete all of them. It also shows whether the leader would restart.

If the configuration in the bucket is not valid, "config plan" compares the file with the
configuration that a leader applied last. In its JSON output, the field "rolling_groups"
lists the static groups whose instances would be replaced, like the attribute of this name
of the Terraform resource nstance_shard.`,
		Example: `  nstance-admin config plan us-west-2a.jsonc --storage-bucket my-bucket
  nstance-admin config plan us-west-2a.jsonc --storage-bucket my-bucket -o json | jq .rolling_groups`,
	}
	var b bucketFlags
	b.add(cmd)
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.compare(cmd.Context(), &b, args[0])
		if err != nil {
			return err
		}
		plan := planOf(c)
		return a.show(*f, plan, func(w io.Writer) error {
			plan.write(w)
			return nil
		})
	}
	return cmd
}

func (p configPlan) write(w io.Writer) {
	if p.ComparedWithApplied {
		fmt.Fprintf(w, "%s: the newest configuration in the bucket is not valid, so this compares with the applied "+
			"one.\n", p.Shard)
	}
	switch {
	case p.Unchanged:
		fmt.Fprintf(w, "%s: the bucket has this configuration already.\n", p.Shard)
	case p.New:
		fmt.Fprintf(w, "%s: the bucket has no valid configuration to compare with.\n", p.Shard)
	case len(p.Effects) == 0:
		fmt.Fprintf(w, "%s: nothing happens to running instances.\n", p.Shard)
	}
	for _, line := range p.Effects {
		fmt.Fprintf(w, "%s: %s\n", p.Shard, line)
	}
	if len(p.RestartingSettings) > 0 {
		fmt.Fprintf(w, "%s: the leader restarts, because these settings are read only at the start: %s. Instances "+
			"keep running.\n", p.Shard, list(p.RestartingSettings))
	}
}

func (a *app) configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff FILE", Short: "Compare a configuration file with the one in the bucket", Args: cobra.ExactArgs(1),
		Long: `Compares a configuration file with the shard's configuration in the bucket, and prints the
differences in the format of diff -u. Prints nothing if there is no difference. "config
plan" shows what the differences do to running instances.`,
		Example: `  nstance-admin config diff us-west-2a.jsonc --storage-bucket my-bucket`,
	}
	var b bucketFlags
	b.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.compare(cmd.Context(), &b, args[0])
		if err != nil {
			return err
		}
		_, err = io.WriteString(a.Stdout, unifiedDiff(c.stored, c.file, "bucket/config/"+c.name+".jsonc", args[0]))
		return err
	}
	return cmd
}

func (a *app) configHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history", Short: "Show when configurations were applied", Args: cobra.NoArgs,
		Long: `Lists the configurations that leaders have applied, each with its time and ETag. The list
comes from the shards' journals. "cluster journal" shows who pushed a configuration.`,
		Example: `  nstance-admin config history --all-shards --since 168h`,
	}
	var since time.Duration
	cmd.Flags().DurationVar(&since, "since", 0, "only configurations applied within this time, such as 168h")
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.history(cmd, s, *f, since, &nstancev1.EventFilter{Kinds: []string{"config_applied"}})
	}
	return cmd
}

package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at, check, write and apply shard configurations",
		Long: `A shard's configuration is the object config/{shard}.jsonc in the bucket. The Terraform
provider or "config push" writes it. The shard's leader looks for it every 10 s.
"config refresh" makes the leader read it immediately.`}
	cmd.AddCommand(a.configStatusCommand(), a.configRefreshCommand(), a.configValidateCommand(), a.configPlanCommand(),
		a.configDiffCommand(), a.configHistoryCommand(), a.configPushCommand())
	return cmd
}

func (a *app) configStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show which configuration is in force", Args: cobra.NoArgs,
		Long: `Shows for each shard its leader and the configuration that the leader has applied. If the
leader refused a newer configuration, the command shows what is wrong with it.`,
		Example: `  nstance-admin config status --all-shards
  nstance-admin config status --shard us-west-2a --output yaml`,
	}
	return asks(a, cmd, scopeFlags(cmd), fleet.Client.GetConfigStatus, &nstancev1.GetConfigStatusRequest{},
		a.writeConfigStatus)
}

func (a *app) writeConfigStatus(w io.Writer, answers answers[*nstancev1.GetConfigStatusResponse]) error {
	var rows [][]cell
	for _, answer := range answers {
		if answer.Err == nil {
			rows = append(rows, a.configRow(answer))
		}
	}
	if err := a.table(w, []string{"SHARD", "+CLUSTER", "+LEADER", "+TERM", "GENERATION", "+ETAG",
		"MODIFIED", "+SIZE", "STATE"}, rows); err != nil {
		return err
	}
	for _, answer := range answers {
		writeProblems(w, answer.Shard, answer.Message.GetProblems())
	}
	return nil
}

func (a *app) configRow(answer fleet.Answer[*nstancev1.GetConfigStatusResponse]) []cell {
	c := answer.Message
	row := plain(answer.Shard, c.GetClusterId(), c.GetLeaderId(), num(c.GetTerm()), num(c.GetGeneration()), c.GetEtag(),
		stamp(fleet.Time(c.GetLastModified())), num(c.GetSize()), "applied")
	row[8].paint = a.style.out.good
	if c.GetRefusedEtag() != "" || len(c.GetProblems()) > 0 {
		row[8].text = "newer one refused: " + count(len(c.GetProblems()), "problem")
		row[8].paint = a.style.out.bad
	} else if c.GetWaits() != "" {
		row[8].text = "newer one waits: " + c.GetWaits()
		row[8].paint = a.style.out.warn
	}
	return row
}

func writeProblems(w io.Writer, shard string, problems []*nstancev1.ConfigProblem) {
	for _, p := range problems {
		text := config.Problem{File: shard, Path: p.GetPath(), Line: int(p.GetLine()), Col: int(p.GetColumn()),
			Message: p.GetMessage()}
		fmt.Fprintln(w, printable(text.String()))
	}
}

func (a *app) configRefreshCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "refresh", Short: "Have shards read and apply their configuration now", Args: cobra.NoArgs,
		Long: `Makes each shard's leader read its configuration from the bucket and apply it now. If
the configuration is not valid, nothing changes: the command shows the problems, and its
exit status is 1.`,
		Example: `  nstance-admin config refresh --all-shards`,
	}
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.refresh(cmd.Context(), s, *f) }
	return cmd
}

func (a *app) refresh(ctx context.Context, s *scope, f format) error {
	table := func(w io.Writer, answers answers[*nstancev1.RefreshConfigResponse]) error {
		for _, answer := range answers {
			r := answer.Message
			result := strings.ToLower(strings.TrimPrefix(r.GetResult().String(), "REFRESH_RESULT_"))
			switch {
			case r.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID:
				writeProblems(w, answer.Shard, r.GetProblems())
			case answer.Err != nil:
			case r.GetRestarting():
				fmt.Fprintf(w, "%s: configuration %s (%s), the servers restart one after the other to apply it\n",
					answer.Shard, result, printable(r.GetEtag()))
			default:
				fmt.Fprintf(w, "%s: configuration %s (%s)\n", answer.Shard, result, printable(r.GetEtag()))
			}
		}
		return nil
	}
	return ask(ctx, a, s, f, "refreshing", fleet.Client.RefreshConfig, &nstancev1.RefreshConfigRequest{}, table)
}

func (a *app) configValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate FILE", Short: "Check a configuration file", Args: cobra.ExactArgs(1),
		Long: `Checks a shard configuration as the server and the Terraform provider do, and prints
everything that is wrong with it, with line and column. The check needs neither the
bucket nor a server.`,
		Example: `  nstance-admin config validate us-west-2a.jsonc
  cat us-west-2a.jsonc | nstance-admin config validate -`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		_, shard, problems, err := a.readConfig(args[0])
		if err != nil {
			return err
		}
		result := validation{Valid: shard != nil, Problems: append(config.Problems{}, problems...)}
		err = a.show(*f, result, func(w io.Writer) error {
			for _, p := range problems {
				fmt.Fprintln(w, p)
			}
			if shard != nil {
				fmt.Fprintf(w, "%s is valid: shard %s of cluster %s\n", args[0], shard.Server.Shard, shard.Cluster.ID)
			}
			return nil
		})
		if shard == nil {
			err = errors.Join(err, invalid(args[0], problems))
		}
		return err
	}
	return cmd
}

type validation struct {
	Valid    bool            `json:"valid"`
	Problems config.Problems `json:"problems"`
}

func invalid(file string, problems config.Problems) error {
	n := len(problems.Errors())
	return withHint(fmt.Errorf("%s is not a valid configuration: %s", file, count(n, "problem")),
		"docs/reference/configuration.md describes every field")
}

// readConfig reads and parses a configuration from a file, or from standard input if path is "-". The shard is nil if
// the configuration is not valid.
func (a *app) readConfig(path string) ([]byte, *config.Shard, config.Problems, error) {
	body, err := a.readInput(path, config.MaxSize)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	shard, problems := config.Parse(path, body)
	return body, shard, problems, nil
}

// readInput reads a file, or standard input if path is "-". It reads one byte more than the limit, so that the caller
// sees that the file is too long.
func (a *app) readInput(path string, limit int64) ([]byte, error) {
	from := a.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	return io.ReadAll(io.LimitReader(from, limit+1))
}

// storageTime is the default of --storage-timeout.
const storageTime = time.Minute

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
	at, _, err := b.of(out.name)
	if err != nil {
		return compared{}, err
	}
	bucket, ctx, cancel, err := at.open(ctx, false)
	if err != nil {
		return compared{}, err
	}
	defer cancel()
	state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ShardID: out.name})
	err = during(a, "reading from "+at.location.Bucket, func() error {
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
		kept, ended := config.Overridden(c.before, c.after, c.overrides)
		plan.Effects = slices.Concat(plan.Effects, kept, ended)
	}
	return plan
}

func (a *app) configPlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "plan FILE", Short: "Show what a configuration would do to running instances", Args: cobra.ExactArgs(1),
		Long: `Compares a configuration file with the shard's configuration in the bucket, and changes
nothing. For each group, the command shows whether the change would replace instances, send
them new files, or delete all of them. It also shows whether the servers would restart.

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
		fmt.Fprintf(w, "%s: the servers restart one after the other, because these settings are read only at the "+
			"start: %s. Instances keep running.\n", p.Shard, list(p.RestartingSettings))
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
		Example: `  nstance-admin config history --all-shards --since 7d`,
	}
	var from since
	cmd.Flags().Var(&from, "since",
		"only configurations applied since a time: that long ago, such as 7d, or 2026-11-29")
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.history(cmd, s, *f, 0, &nstancev1.EventFilter{Kinds: []string{"config_applied"},
			Since: from.time(a.Now())})
	}
	return cmd
}

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
whether the servers restart. On a terminal, it asks for a confirmation. Without a terminal,
it needs --yes in two cases. In the first, the change replaces or deletes instances. In the
second, the effects are unknown, because the bucket has only an invalid configuration, and
no leader has applied a valid one.

With --refresh the shard's leader applies the configuration immediately. With --dry-run,
the command also shows what the leader would do, if it knows the leader's address.`,
		Example: `  nstance-admin config push us-west-2a.jsonc --storage-bucket my-bucket
  nstance-admin config push us-west-2a.jsonc --storage-bucket my-bucket --refresh --yes`,
	}
	cmd.Flags().StringVar(&wantShard, "shard", "", "fail unless the file is of this shard")
	keepFromSettings(cmd, "shard")
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
			s.shard = shard.Server.Shard
			f, _, err := a.connect(s)
			if err != nil {
				return err
			}
			f.Close()
		}
		c := compared{name: shard.Server.Shard, file: body, after: shard}
		if done, err := a.push(cmd, &b, confirm, c, wantETag); err != nil || done {
			if err == nil && confirm.dryRun {
				err = a.explainConfig(cmd.Context(), s, c)
			}
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
	at, own, err := b.of(c.name)
	if err != nil {
		return false, err
	}
	bucket, ctx, cancel, err := at.open(cmd.Context(), true)
	if err != nil {
		return false, err
	}
	defer cancel()
	journal := bucket
	if own {
		shared, _, cancel, err := b.open(cmd.Context(), false)
		if err != nil {
			return false, err
		}
		cancel()
		journal = shared
	}
	var had objstore.Token
	err = during(a, "reading from "+at.location.Bucket, func() (err error) {
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
	return false, during(a, "writing to "+at.location.Bucket, func() error {
		return a.writePush(ctx, bucket, journal, c, had)
	})
}

// explainConfig shows what the shard's leader would do with a configuration. If no address of the shard is known, it
// says so.
func (a *app) explainConfig(ctx context.Context, s *scope, c compared) error {
	s.shard = c.name
	f, shards, err := a.connect(s)
	if usage, ok := errors.AsType[*usageError](err); ok {
		a.note("The leader was not asked what it would do: %v; %s.", usage.err, usage.hint)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	previews := during(a, "asking shard "+c.name, func() []fleet.Preview {
		return f.Explain(ctx, shards, &nstancev1.ExplainChangeRequest{
			Change: &nstancev1.ExplainChangeRequest_Configuration{Configuration: c.file}})
	})
	for _, line := range previewLines(previews) {
		if err := a.line("%s", line); err != nil {
			return err
		}
	}
	return failuresOf(previews)
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

// writePush writes the file's configuration to the shard's bucket if the stored configuration still has the token
// `had`, and an entry to the journal in the cluster's bucket.
func (a *app) writePush(ctx context.Context, bucket, journal objstore.Store, c compared, had objstore.Token) error {
	token, err := a.shardState(bucket, c.after).WriteConfig(ctx, c.name, c.file, had)
	if errors.Is(err, objstore.ErrConflict) {
		return withHint(err, "another program wrote it at the same time; read the current one and push again")
	}
	if err != nil {
		return err
	}
	a.journalChange(ctx, journal, record.ClusterEvent{Kind: "config_pushed", Shard: c.name,
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

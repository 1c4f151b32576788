package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const (
	// rotationTime is the default of --timeout. Leaders look for a new CA every three minutes, and agents spread their
	// renewals over five minutes. The default leaves ample time for both.
	rotationTime = time.Hour
	// rotationPause is how long rotate-ca waits before it checks again which clients use the new CA.
	rotationPause = 10 * time.Second
)

func (a *app) rotateCACommand(s *secretFlags) *cobra.Command {
	var timeout time.Duration
	var noWait, onlyStatus bool
	cmd := &cobra.Command{
		Use: "rotate-ca", Short: "Replace the cluster's CA and nonce key while everything runs", Args: cobra.NoArgs,
		Long: `Replaces the CA of servers, agents and operators, and the key that signs registration
nonces, without an interruption, in four steps:

  1. make a new CA and nonce key, and add the CA to cluster/ca.crt;
  2. wait until leaders, agents and operators trust both, then issue and sign with the
     new ones;
  3. wait until they have certificates of the new CA;
  4. remove the old CA from cluster/ca.crt, and refuse nonces of the old key.

After step 4 of "rotate-ca", unused operator nonces that were made before step 2 are no
longer valid. Make new nonces.

After each step of a CA rotation, leaders need up to three minutes to use the new keys, and
agents up to five more. A rotation takes about twenty minutes in total. If "rotate-ca" is
interrupted or times out, the cluster keeps working. To continue the rotation, run the
command again. When no rotation is under way, a run starts a new one.

In a CA rotation, operators need certificates of the new CA, too. nstance-operator renews
its own. To renew the certificate in an identity directory, run "nstance-admin cluster
register-operator" again while "rotate-ca" waits. A rotation also waits for operators that
no longer run. Remove these with "nstance-admin cluster operator remove".

In a cluster that was made before workload CAs existed, files of instances can contain
certificates of the old CA. In such a cluster, step 4 of "rotate-ca" must wait until these
certificates have expired, which can take up to four months. Run the command again after
that.

At its end, a CA rotation removes the old CA and makes unused nonces invalid. Therefore
"rotate-ca" asks for a confirmation on a terminal, and needs --yes elsewhere. With
--status it changes nothing and does not ask.

Before you run "rotate-ca", upgrade all servers, agents and operators to a version that
supports it.

A rotation must know all shards. It finds those whose configurations are in the bucket in
--storage-bucket, and those of --shard-storage. If --servers names a shard that it does not
find, it changes nothing.`,
		Example: `  nstance-admin cluster rotate-ca --storage-bucket my-bucket
  nstance-admin cluster rotate-ca --storage-bucket my-bucket --no-wait --yes   # take the steps that are possible now
  nstance-admin cluster rotate-ca --storage-bucket my-bucket --status    # who has old certificates?`,
	}
	cmd.Flags().DurationVar(&timeout, "timeout", rotationTime,
		"how long to wait until servers, agents and operators have followed")
	cmd.Flags().BoolVar(&noWait, "no-wait", false,
		"take the steps that are possible now, and say what the rotation waits for")
	cmd.Flags().BoolVar(&onlyStatus, "status", false,
		"change nothing: show how far a rotation is, and how many servers, agents and operators have yet to follow")
	var servers string
	cmd.Flags().StringVar(&servers, "servers", "", "operator addresses of the shards, as shard=host:port,…; "+
		"a rotation must find each of these shards")
	cmd.MarkFlagsMutuallyExclusive("no-wait", "status")
	f, confirm := outputFlag(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usagef("--timeout %s is not more than zero", timeout)
		}
		shards, err := a.shardsOf(cmd, servers)
		if err != nil {
			return err
		}
		if !onlyStatus {
			const what = "the cluster's CA and nonce key are replaced; unused nonces of the old key end"
			if done, err := a.confirm(cmd, confirm, what); done || err != nil {
				return err
			}
		}
		if !noWait && !onlyStatus && !cmd.Flags().Changed("storage-timeout") {
			s.timeout = timeout
		}
		result, err := inCluster(cmd.Context(), a, s, need{key: true, own: true},
			func(ctx context.Context, c *cluster) (caRotation, error) {
				if err := a.findShards(ctx, s.bucketFlags, c, shards); err != nil {
					return caRotation{}, err
				}
				if onlyStatus {
					return rotationStatus(ctx, c)
				}
				return a.rotateCA(ctx, c, noWait)
			})
		if err != nil {
			return err
		}
		return a.show(*f, result, func(w io.Writer) error {
			facts := []fact{{"CA", result.Fingerprint}, {"CA ends", stamp(result.NotAfter)}}
			switch {
			case result.Finished && onlyStatus:
				facts = append(facts, fact{"Rotation", "none is under way"})
			case result.Finished:
				facts = append(facts, fact{"Rotation", "finished"})
			default:
				facts = append(facts, fact{"Rotation", result.Step + ", not finished: run the command again"})
			}
			if result.Waiting != nil && onlyStatus {
				facts = append(facts, fact{"Not followed", describeBehind(*result.Waiting)})
			}
			return writeFacts(w, a.style.out, facts)
		})
	}
	return cmd
}

// shardsOf returns the names of the shards in the setting "servers". If the command line names a bucket, the addresses
// of a variable or a context may be those of another cluster, so they do not count.
func (a *app) shardsOf(cmd *cobra.Command, servers string) (names []string, err error) {
	found, err := a.settings(cmd)
	if err != nil {
		return nil, err
	}
	from := map[string]precedence{}
	for _, setting := range found {
		from[setting.Flag] = setting.precedence
	}
	if from["servers"] < from["storage-bucket"] {
		return nil, nil
	}
	shards, err := endpoints.Parse(servers)
	if err != nil {
		return nil, usagef("server %w", err)
	}
	for _, shard := range shards {
		names = append(names, shard.Name)
	}
	return names, nil
}

// findShards checks that the configurations of the named shards, and of those that have their own buckets, can be read.
func (a *app) findShards(ctx context.Context, b bucketFlags, c *cluster, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, storageTime)
	defer cancel()
	names = slices.AppendSeq(slices.Clone(names), maps.Keys(c.own))
	slices.Sort(names)
	for _, shard := range slices.Compact(names) {
		at, _, err := b.of(shard)
		if err != nil {
			return err
		}
		body, _, err := c.state.InShard(shard).ReadConfig(ctx, shard)
		if errors.Is(err, objstore.ErrNotFound) {
			return withHint(fmt.Errorf("shard %s has no configuration in the %s, so nothing was changed", shard,
				at.describe()), "name the shard's bucket with --shard-storage %s=PROVIDER://BUCKET, or leave the "+
				"shard out of --servers and --shard-storage if it no longer exists", shard)
		}
		if err != nil {
			return withHint(fmt.Errorf("shard %s cannot be read in the %s, so nothing was changed: %w", shard,
				at.describe(), err), "give the credentials for this bucket, or correct --shard-storage")
		}
		if found, _ := config.ParseStored("config", body); found != nil && found.Cluster.ID != c.id {
			return withHint(fmt.Errorf("shard %s in the %s is of cluster %s, not of %s, so nothing was changed", shard,
				at.describe(), found.Cluster.ID, c.id), "correct --shard-storage or --storage-bucket")
		}
	}
	return nil
}

type caRotation struct {
	Finished bool `json:"finished"`
	// Step is prepared (the new CA is not trusted yet), announced (the old CA still issues certificates), issued (the
	// new CA issues certificates, and the old CA is still trusted) or none.
	Step string `json:"step"`
	// Fingerprint and NotAfter describe the CA that issues certificates at present.
	Fingerprint string    `json:"ca_fingerprint"`
	NotAfter    time.Time `json:"ca_not_after"`
	// Waiting lists the clients that do not use the CAs of the current step yet. The next step waits for them. In the
	// step "issued", these clients still have certificates of the old CA.
	Waiting *clusterstate.Following `json:"waiting,omitempty"`
}

func describeRotation(r clusterstate.Rotation) caRotation {
	return caRotation{Finished: r.Step == clusterstate.RotationNone, Step: r.Step.String(),
		Fingerprint: authority.Fingerprint(r.Current), NotAfter: r.Current.NotAfter.UTC()}
}

// rotationStatus reads the step of a CA rotation. It also returns which leaders, instances and operators do not use the
// CAs of this step yet. It changes nothing.
func rotationStatus(ctx context.Context, c *cluster) (caRotation, error) {
	r, err := c.state.CARotation(ctx)
	if err != nil {
		return caRotation{}, noKeysYet(err)
	}
	result := describeRotation(r)
	if r.Trust == "" { // no client has anything to follow
		return result, nil
	}
	following, err := c.state.Followers(r).Check(ctx)
	result.Waiting = &following
	return result, err
}

// describeBehind counts the leaders, instances and operators that do not use the CAs of the current step yet.
func describeBehind(f clusterstate.Following) string {
	leaders, instances := 0, 0
	for _, shard := range f.Shards {
		instances += len(shard.Behind)
		if !shard.Leader {
			leaders++
		}
	}
	text := fmt.Sprintf("leaders %d, instances %d, operators %d", leaders, instances, len(f.Operators))
	if !f.FilesUntil.IsZero() {
		text += ", files of instances until " + stamp(f.FilesUntil)
	}
	return text
}

func (a *app) rotateCA(ctx context.Context, c *cluster, noWait bool) (caRotation, error) {
	if _, err := c.state.LoadCA(ctx); err != nil {
		return caRotation{}, noKeysYet(err)
	}
	var waiting *clusterstate.Following
	r, err := c.state.RotateCA(ctx, func(ctx context.Context, r clusterstate.Rotation,
		followers *clusterstate.Followers) (bool, error) {
		a.note("%s", describeStep(r))
		reported := map[string]string{}
		for {
			following, err := followers.Check(ctx)
			if err != nil {
				return false, err
			}
			a.reportFollowing(following, reported)
			waiting = &following
			if following.Done() || noWait {
				return following.Done(), nil
			}
			if err := tasks.Sleep(ctx, rotationPause); err != nil {
				return false, err
			}
		}
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return caRotation{}, withHint(fmt.Errorf("the rotation of the CA is not finished: %w", err),
			"the cluster works with both CAs; run the command again to continue, and see above what it waits for")
	}
	if err != nil {
		return caRotation{}, withHint(err, "run the command again to continue the rotation")
	}
	result := describeRotation(r)
	a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "ca_rotation", Message: "step " + result.Step + ", CA " +
		result.Fingerprint})
	if !result.Finished {
		result.Waiting = waiting
	}
	return result, nil
}

func describeStep(r clusterstate.Rotation) string {
	if r.Step == clusterstate.RotationAnnounced {
		return "The new CA " + authority.Fingerprint(r.Other) + " is announced. Waiting until all trust it."
	}
	return "The new CA " + authority.Fingerprint(r.Current) +
		" issues certificates. Waiting until none of the old CA is left."
}

// reportFollowing prints which clients use the CAs of the current step. It prints only what has changed since the last
// report.
func (a *app) reportFollowing(f clusterstate.Following, reported map[string]string) {
	note := func(about, text string) {
		if reported[about] != text {
			reported[about] = text
			a.note("%s: %s", about, text)
		}
	}
	for _, shard := range f.Shards {
		leader := "its leader has followed"
		if !shard.Leader {
			leader = "its leader has not followed yet"
		}
		text := fmt.Sprintf("%s, %d of %s", leader, shard.Instances-len(shard.Behind),
			count(shard.Instances, "instance"))
		if n := len(shard.Behind); n > 0 && n <= 3 {
			text += fmt.Sprintf(", waiting for %v", shard.Behind)
		}
		note("Shard "+shard.Shard, text)
	}
	for _, operator := range f.Operators {
		note("Operator "+operator.ID.String(), "of tenant "+operator.Tenant+" has not renewed its certificate yet")
	}
	if !f.FilesUntil.IsZero() {
		note("Files of instances", "they have certificates of the old CA until "+stamp(f.FilesUntil))
	}
}

// leastWorkloadNotice is the minimum of --notice, the time from the creation of a new workload CA until this CA issues
// certificates. Leaders look for a new CA every half an hour.
const leastWorkloadNotice = 2 * time.Hour

func (a *app) rotateWorkloadCACommand(s *secretFlags) *cobra.Command {
	var notice time.Duration
	var onlyStatus bool
	cmd := &cobra.Command{
		Use: "rotate-workload-ca", Short: "Replace the CA of the certificates in files of instances",
		Args: cobra.NoArgs,
		Long: `Replaces the workload CA, which signs the certificates in files of instances, in three
steps:

  1. make a new CA, which starts after the time of --notice. Leaders learn of it within
     half an hour and send the files that hold the workload CA, now with both CAs;
  2. from its start on, the new CA signs new and renewed certificates;
  3. after the longest life of a certificate, 90 days, remove the old CA.

Each run of "rotate-workload-ca" takes the step that is possible now, prints the time of
the next step, and returns. Run it again at that time. If you run it too early, it
changes nothing. If you run it after the last step, it begins a new rotation. You may
interrupt it, because each step is one write to the bucket.

"rotate-workload-ca" asks for a confirmation on a terminal, and needs --yes elsewhere.
With --status it changes nothing and does not ask.

Two things must happen before the new workload CA starts to sign. Services on instances
must load the files that leaders send, which have both CAs. Programs outside the instances
must trust both CAs: --output-cert writes the CAs' certificates to a file.

Before you run "rotate-workload-ca", upgrade all servers to a version that supports it.`,
		Example: `  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --yes
  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --status
  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --status --output-cert workload-ca.crt`,
	}
	var certFile string
	cmd.Flags().DurationVar(&notice, "notice", clusterstate.WorkloadNotice, "time until a new CA issues certificates")
	cmd.Flags().BoolVar(&onlyStatus, "status", false, "change nothing: show how far a rotation is")
	cmd.Flags().StringVar(&certFile, "output-cert", "", "file to write the certificates of the trusted CAs to")
	f, confirm := outputFlag(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if notice < leastWorkloadNotice {
			return usagef("--notice %s is less than %s, in which leaders learn of a new CA", notice,
				leastWorkloadNotice)
		}
		if !onlyStatus {
			const what = "the workload CA is replaced: the step that is possible now is taken"
			if done, err := a.confirm(cmd, confirm, what); done || err != nil {
				return err
			}
		}
		cas, err := inCluster(cmd.Context(), a, s, need{key: true},
			func(ctx context.Context, c *cluster) (authority.WorkloadCAs, error) {
				if onlyStatus {
					return c.state.LoadWorkloadCAs(ctx)
				}
				cas, err := c.state.RotateWorkloadCA(ctx, notice)
				if err == nil {
					a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "workload_ca_rotation",
						Message: "step " + describeWorkloadCAs(cas, a.Now()).Step})
				}
				return cas, err
			})
		switch {
		case errors.Is(err, secretstore.ErrNotFound):
			return withHint(err,
				"a shard's first leader makes the workload CA; check --storage-bucket and --storage-prefix")
		case errors.Is(err, clusterstate.ErrWorkloadCANew):
			return withHint(err, "run the command again after that time")
		case err != nil:
			return err
		}
		if certFile != "" {
			if err := renameio.WriteFile(certFile, cas.EncodeCertificates(), 0o644); err != nil {
				return err
			}
		}
		result := describeWorkloadCAs(cas, a.Now())
		return a.show(*f, result, func(w io.Writer) error {
			facts := []fact{{"Workload CA", result.Fingerprint}, {"Rotation", result.Step}}
			if result.Step != "none" {
				facts = append(facts, fact{"New CA", result.NewFingerprint},
					fact{"New CA issues from", stamp(result.Issues)}, fact{"Old CA can be removed", stamp(result.Ends)})
			}
			return writeFacts(w, a.style.out, facts)
		})
	}
	return cmd
}

type workloadRotation struct {
	// Step is none, announced (the old CA still issues certificates) or issued (the new CA issues certificates, and the
	// old CA is still trusted).
	Step        string `json:"step"`
	Fingerprint string `json:"ca_fingerprint"`
	// The fields below are set only during a rotation.
	NewFingerprint string    `json:"new_ca_fingerprint,omitempty"`
	Issues         time.Time `json:"issues,omitzero"`
	Ends           time.Time `json:"old_ca_removable,omitzero"`
}

func describeWorkloadCAs(cas authority.WorkloadCAs, now time.Time) workloadRotation {
	out := workloadRotation{Step: "none", Fingerprint: authority.Fingerprint(cas[0].Certificate())}
	if len(cas) > 1 {
		out.Step = "announced"
		if out.Issues = cas[1].Starts().UTC(); !now.Before(out.Issues) {
			out.Step = "issued"
		}
		out.NewFingerprint = authority.Fingerprint(cas[1].Certificate())
		out.Ends = clusterstate.WorkloadCAEnd(cas).UTC()
	}
	return out
}

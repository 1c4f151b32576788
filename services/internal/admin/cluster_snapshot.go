package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/snapshot"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/file"
)

func (a *app) snapshotCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "snapshot", Short: "Copy the objects of the bucket into one archive", Args: cobra.NoArgs,
		Long: `Copies all objects that a restore of the cluster needs from the bucket into one .tar.gz
file. Servers may run at the same time.

The archive of a snapshot shows all documents as they were at one moment. If a document
changes while "cluster snapshot" reads the bucket, the command reads again, up to five
times. If a document changes during the last try too, the command prints a warning. It
reads locks, journals and logs only once, because they change all the time.

The archive of a snapshot contains the object with the key KEY as the file objects/KEY.
manifest.json lists the SHA-256, ETag and time of each object. "cluster snapshot" writes
the archive under a temporary name, then renames it. It never replaces an existing file.

Only your user can read the archive of a snapshot. It contains the cluster's keys, sealed
with the encryption key, and the configurations with all secrets in them. It contains
neither the encryption key, which you must keep elsewhere, nor secrets that are stored
outside the bucket, such as in a secrets manager.

"cluster snapshot" changes nothing in the bucket, and needs no encryption key. Check the
archive with "nstance-admin cluster restore-check". docs/how-to/back-up-and-restore.md
tells how to restore it.`,
		Example: `  nstance-admin cluster snapshot --storage-bucket my-bucket
  nstance-admin cluster snapshot --storage-bucket my-bucket --output /backup/nstance.tar.gz --storage-timeout 10m`,
	}
	var output string
	cmd.Flags().StringVar(&output, "output", "",
		"file to write, which must not exist (default nstance-snapshot-CLUSTER-TIME.tar.gz)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := refuseExisting(output); err != nil {
			return err
		}
		return a.withCluster(cmd.Context(), s, need{}, func(ctx context.Context, c *cluster) error {
			name := fmt.Sprintf("nstance-snapshot-%s-%s.tar.gz", c.id, a.Now().UTC().Format("20060102T150405Z"))
			return a.snapshot(ctx, c, cmp.Or(output, name))
		})
	}
	return cmd
}

// namedLeftOut is the maximum number of objects that "cluster snapshot" lists as left out. A snapshot leaves out the
// objects of other programs, and a bucket may contain many of them.
const namedLeftOut = 10

// snapshot writes the archive to path. First it copies the objects into a directory beside path, not into the temporary
// directory of the system, because the copies may need much space.
func (a *app) snapshot(ctx context.Context, c *cluster, path string) (err error) {
	dir, remove, err := tempRoot(filepath.Dir(path), ".nstance-snapshot-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	m, err := snapshot.Copy(ctx, c.bucket, snapshot.Options{Dir: dir, Now: a.Now, ForEach: tasks.ForEach})
	if err != nil {
		return err
	}
	m.Cluster, m.Program = c.id, a.version
	size, err := writeNewFile(path, func(w io.Writer) error { return snapshot.Write(w, m, dir) })
	if err != nil {
		return err
	}
	for _, key := range m.LeftOut[:min(len(m.LeftOut), namedLeftOut)] {
		a.note("Left out: %s is no object that a restore needs.", printable(key))
	}
	if more := len(m.LeftOut) - namedLeftOut; more > 0 {
		a.note("Left out: %d more objects, which left_out in manifest.json names.", more)
	}
	if !m.Consistent {
		a.note("Warning: documents changed all the time, so the archive may have them as of different moments; " +
			"manifest.json marks them as changed. Make another one when less happens.")
	}
	return a.line("%s: %s of cluster %s, %d bytes", path, count(len(m.Objects), "object"), c.id, size)
}

// tempRoot makes a directory that only this user can read. The returned function deletes the directory.
func tempRoot(parent, pattern string) (root *os.Root, remove func() error, err error) {
	dir, err := os.MkdirTemp(parent, pattern) // mode 0700
	if err != nil {
		return nil, nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	root, err = os.OpenRoot(dir)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the temporary directory: %w", err), os.RemoveAll(dir))
	}
	return root, func() error { return errors.Join(root.Close(), os.RemoveAll(dir)) }, nil
}

// restoreCheck is the result of the command restore-check.
type restoreCheck struct {
	snapshot.Manifest
	// KeysChecked reports whether the check has opened sealed objects and verified signatures.
	KeysChecked bool      `json:"keys_checked"`
	Findings    []finding `json:"findings"`
}

func (a *app) restoreCheckCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore-check ARCHIVE", Short: "Check whether a snapshot can be restored", Args: cobra.ExactArgs(1),
		Long: `Checks an archive of "nstance-admin cluster snapshot" without touching a cluster:

  * each object is the one that was copied, by its SHA-256
  * each document parses, in a schema that this version knows
  * the keys of the cluster open with the encryption key, and the CA has signed what it
    must; without the encryption key the command says that this is not checked
  * each shard has a configuration, and the record of each instance belongs to a group of it

For each problem of the archive, "restore-check" prints what the problem would cause after
a restore, and what you can do. If there is a problem, the exit status is 1. The command
unpacks the archive into a temporary directory, which it deletes at the end. This directory
needs space for all objects of the archive.`,
		Example: `  nstance-admin cluster restore-check nstance-snapshot-example-20261125T221345Z.tar.gz
  nstance-admin cluster restore-check backup.tar.gz --key-provider file --key-source backup.key`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"storage-provider", "storage-bucket", "storage-prefix", "storage-timeout"} {
			if cmd.Flag(name).Changed {
				return usagef("--%s: restore-check reads only the archive", name)
			}
		}
		keyGiven := cmd.Flag("key-provider").Changed || cmd.Flag("key-source").Changed || cmd.Flag("old-key").Changed
		var result restoreCheck
		err := during(a, "checking "+args[0], func() (err error) {
			result, err = a.restoreCheck(cmd.Context(), s, args[0], keyGiven)
			return err
		})
		if err != nil {
			return err
		}
		if err := a.show(*f, result, func(w io.Writer) error { return a.writeRestoreCheck(w, result) }); err != nil {
			return err
		}
		if bad := problemsIn(result.Findings); bad > 0 {
			return withHint(fmt.Errorf("%s of %s", count(bad, "problem"), args[0]), "see Next above for each of them")
		}
		return nil
	}
	return cmd
}

func (a *app) writeRestoreCheck(w io.Writer, r restoreCheck) error {
	if _, err := fmt.Fprintf(w, "Cluster %s, %s, from %s to %s\n\n", r.Cluster,
		count(len(r.Objects), "object"), stamp(r.Began),
		stamp(r.Ended)); err != nil {
		return err
	}
	return a.writeDiagnosis(w, diagnosis{Findings: r.Findings})
}

func (a *app) restoreCheck(ctx context.Context, s *secretFlags, path string, keyGiven bool) (result restoreCheck,
	err error) {
	source, err := os.Open(path)
	if err != nil {
		return restoreCheck{}, fmt.Errorf("open archive: %w", err)
	}
	defer source.Close()
	root, remove, err := tempRoot("", "nstance-restore-check-*")
	if err != nil {
		return restoreCheck{}, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	manifest, differences, err := snapshot.Unpack(source, root, snapshot.DefaultLimits)
	if errors.Is(err, snapshot.ErrArchive) {
		return restoreCheck{}, withHint(fmt.Errorf("%s: %w", path, err),
			"restore from another archive: this one is cut off, damaged, or not made by nstance-admin cluster snapshot")
	}
	if err != nil {
		return restoreCheck{}, err
	}
	store, err := file.Open(root.Name())
	if err != nil {
		return restoreCheck{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	state := clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ClusterID: manifest.Cluster,
		Now: a.Now})
	c := &restored{app: a, cluster: &cluster{id: manifest.Cluster, bucket: store, state: state}, flags: s,
		keyGiven: keyGiven}
	findings, err := c.check(ctx, manifest, differences)
	return restoreCheck{manifest, c.cluster.secrets != nil, findings}, err
}

// restored is the cluster in an unpacked archive. The command restore-check checks its objects.
type restored struct {
	*app
	cluster  *cluster
	flags    *secretFlags
	keyGiven bool
}

func (r *restored) check(ctx context.Context, m snapshot.Manifest, differences []snapshot.Difference) ([]finding,
	error) {
	if given := r.flags.cluster; given != "" && given != m.Cluster {
		return nil, withHint(fmt.Errorf("the archive is of cluster %s, not of %s", m.Cluster, given),
			"check --cluster-id and the name of the archive")
	}
	found := describeManifest(m, differences)
	shards, err := r.configurations(ctx, m)
	if err != nil {
		return nil, err
	}
	secrets, err := r.openSecrets(ctx, shards)
	if err != nil {
		return nil, err
	}
	found = append(found, secrets)
	checked, err := verify(ctx, r.cluster, r.Now())
	if err != nil {
		return nil, err
	}
	found = append(found, r.describeVerification(checked)...)
	if slices.ContainsFunc(m.Objects, func(o snapshot.Object) bool { return o.Key == keys.ClusterCA() }) {
		found = append(found, r.checkCA(ctx, r.cluster.state))
	}
	if len(shards) == 0 {
		found = append(found, finding{"shards", problem,
			"no shard has a configuration: no server leads after a restore",
			"write the configurations with tofu apply or nstance-admin config push, or take another snapshot"})
	}
	for _, shard := range shards {
		groups, err := r.checkGroups(ctx, shard)
		if err != nil {
			return nil, err
		}
		found = append(found, groups...)
	}
	return found, nil
}

// describeManifest returns the findings about the archive as a whole.
func describeManifest(m snapshot.Manifest, differences []snapshot.Difference) []finding {
	if len(differences) > 0 {
		var found []finding
		for _, d := range differences {
			found = append(found, finding{"archive", problem, printable(d.Key) + ": " + d.Problem,
				"restore from another copy of the archive: this one was changed or is damaged"})
		}
		return found
	}
	found := []finding{{"archive", ok, count(len(m.Objects), "object") + ", as they were copied", ""}}
	changed := 0
	for _, object := range m.Objects {
		if object.Changed && !object.Moving() {
			changed++
		}
	}
	if !m.Consistent {
		found = append(found, finding{"one moment", problem, fmt.Sprintf("documents changed while they were copied, "+
			"and "+
			"%d of them have a newer version: after a restore, documents may contradict each other", changed),
			"prefer a snapshot from a time when less happened; manifest.json marks the documents as changed"})
	}
	return found
}

// configurations returns the valid configurations in the archive. The command `cluster verify` reports the invalid
// ones.
func (r *restored) configurations(ctx context.Context, m snapshot.Manifest) (shards []*config.Shard, err error) {
	for _, object := range m.Objects {
		key, err := keys.Parse(object.Key)
		if err != nil || key.Kind != keys.KindConfig {
			continue
		}
		read, err := r.cluster.bucket.Get(ctx, object.Key)
		if errors.Is(err, objstore.ErrNotFound) {
			continue // a difference from the manifest
		}
		if err != nil {
			return nil, err
		}
		if shard, _ := config.ParseStored(object.Key, read.Body); shard != nil && shard.Server.Shard == key.Shard {
			shards = append(shards, shard)
		}
	}
	return shards, nil
}

// openSecrets opens the cluster's secrets in the archive, if the archive has them and a key is given.
func (r *restored) openSecrets(ctx context.Context, shards []*config.Shard) (finding, error) {
	const check = "keys of the cluster"
	r.cluster.sealed = true
	for _, shard := range shards {
		if provider := shard.Cluster.Secrets.Provider; provider != "" && provider != config.ObjectStorage {
			r.cluster.sealed = false
			return finding{check, skipped, "they are in " + provider + ", and not in the archive",
				"keep a backup of that service; without its secrets the restored cluster does not start"}, nil
		}
	}
	ring, err := r.flags.ring(ctx, true)
	if err != nil && r.keyGiven {
		return finding{}, err
	}
	if err != nil {
		return finding{check, skipped, "also the signatures of documents: " + err.Error(),
			"give the encryption key to check them: " + r.hintOf(err)}, nil
	}
	flags := *r.flags
	flags.provider, flags.cluster = config.ObjectStorage, r.cluster.id
	if r.cluster, err = r.openCluster(ctx, &flags, r.cluster.bucket, nil, ring); err != nil {
		return finding{}, err
	}
	if _, err := r.cluster.state.LoadCA(ctx); err != nil {
		r.cluster.secrets = nil // nothing else that is sealed opens, and no signature can be checked
		return finding{check, problem, "the CA's key cannot be used, so no server leads after a restore: " +
			err.Error(),
			r.nextFor(err, "give the encryption key of that time, or take another snapshot")}, nil
	}
	return finding{check, ok, "the encryption key opens the CA's key", ""}, nil
}

// describeVerification returns one finding for each problem that `cluster verify` has found.
func (r *restored) describeVerification(v verification) (found []finding) {
	for _, p := range v.Problems {
		means, next := "a restore does not need it", "leave it out of what you restore"
		if key, err := keys.Parse(p.Key); err == nil {
			means, next = meaningOf(key.Kind)
		}
		if strings.Contains(p.Problem, noConfiguration) {
			means, next = "its VMs become orphans that no server manages",
				"write its configuration with tofu apply or nstance-admin config push, or leave the shard out"
		}
		found = append(found, finding{printable(p.Key), problem, means + ": " + p.Problem, next})
	}
	if len(v.Problems) == 0 {
		found = append(found, finding{"documents", ok, "each of them parses and belongs to the cluster", ""})
	}
	return found
}

// meaningOf explains what the loss of an object means after a restore, and what to do.
func meaningOf(kind keys.Kind) (means, next string) {
	const another = "take this object from another snapshot or from the bucket's versions"
	switch kind {
	case keys.KindClusterCA:
		return "servers do not lead without a valid trust bundle", another
	case keys.KindClusterSecret:
		return "what needs this secret fails, and without ca.key no server leads",
			"give the encryption key that sealed it, with --key-source or --old-key, or " + another
	case keys.KindClusterOperator:
		return "this operator is refused",
			"register it again with nstance-admin cluster register-operator, or " + another
	case keys.KindConfig:
		return "the shard has no valid configuration",
			"write it with tofu apply or nstance-admin config push, or " + another
	case keys.KindGroups:
		return "the shard's dynamic groups and overrides are lost", another
	case keys.KindLeader:
		return "servers cannot read the lock and do not lead",
			"leave it out of what you restore: servers wait for a lease"
	case keys.KindApplied:
		return "it is not used, and the next leader writes it again", "leave it out of what you restore"
	case keys.KindRollout:
		return "the group's rollout is not halted any more, and its last good configuration is not known",
			"leave it out of what you restore"
	case keys.KindInstance:
		return "its VM becomes an orphan", "leave it out of what you restore, or " + another
	case keys.KindHome:
		return "servers cannot read it and do not lead", "leave it out of what you restore"
	case keys.KindAgentKey:
		return "another instance can use the key, for example one on a copied disk", "leave it out of what you restore"
	case keys.KindCertLog, keys.KindJournal, keys.KindClusterJournal, keys.KindServerReport:
		return "this part of the history is lost", "leave it out of what you restore"
	}
	return "a restore does not need it", "leave it out of what you restore"
}

// checkGroups checks the groups of a shard, and that the record of each instance belongs to one of them.
func (r *restored) checkGroups(ctx context.Context, shard *config.Shard) (found []finding, err error) {
	name := shard.Server.Shard
	bucket := r.cluster.bucket
	state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, ShardID: name, Now: r.Now})
	dynamic, _, _, err := state.ReadGroups(ctx)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		if ctx.Err() != nil {
			return nil, err
		}
		return []finding{{"groups of shard " + name, skipped, "its dynamic groups cannot be read", ""}}, nil
	}
	groups, problems := shard.Merged(dynamic)
	for _, p := range problems.Errors() {
		found = append(found, finding{"groups of shard " + name, problem,
			"a group gets no new instances: " + p.String(),
			"restore config/ and groups/ of the same time, or correct the configuration after the restore"})
	}
	records, err := r.countRecords(ctx, name)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, group := range slices.SortedFunc(maps.Keys(records), compareGroups) {
		n := records[group]
		if _, ok := groups[group]; ok {
			total += n
			continue
		}
		found = append(found, finding{fmt.Sprintf("group %s of shard %s", group, name), problem,
			count(n, "record") + " of instances name it, and there is no such group: after a restore the leader " +
				"drains and deletes their VMs",
			"restore config/ and groups/ of the same time as the records, or add the group before servers start"})
	}
	if found == nil {
		found = []finding{{"groups of shard " + name, ok, fmt.Sprintf("%s with %s", count(len(groups), "group"),
			count(total, "instance")), ""}}
	}
	return found, nil
}

func compareGroups(a, b config.GroupKey) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Group, b.Group))
}

// countRecords counts the instances of each group. It counts only instances that a leader would manage. It leaves out
// unused reservations, instances that are deleted or being deleted, and records that cannot be decoded.
func (r *restored) countRecords(ctx context.Context, shard string) (map[config.GroupKey]int, error) {
	entries, err := r.cluster.bucket.List(ctx, keys.InstancePrefix(shard))
	if err != nil {
		return nil, err
	}
	counts := map[config.GroupKey]int{}
	for _, entry := range entries {
		object, err := r.cluster.bucket.Get(ctx, entry.Key)
		if err != nil {
			return nil, err
		}
		rec, err := record.Decode[record.Instance](object.Body)
		if err != nil || rec.Group == "" || rec.State == record.Deleting || rec.State == record.Deleted {
			continue
		}
		counts[config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}]++
	}
	return counts, nil
}

package admin

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/support"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// supportOptions are the flags of the command support.
type supportOptions struct {
	secretFlags
	scope
	output string
	since  time.Duration
}

func (a *app) supportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "support", Short: "Write a bundle for a report about a fault, without secrets", Args: cobra.NoArgs,
		Long: `Writes a bundle, one .tar.gz file, to attach to a report about a fault. The command needs
neither a leader nor a running server. If the command cannot read a part, the bundle has
the error in place of this part. The bundle lists the names, sizes and times of all objects
of the bucket. For each shard, the bundle has:

  * what doctor finds
  * the lock, the report of the newest server, and the configuration: the newest, the one
    in force, and the dynamic groups
  * from the leader: status, groups with explanations, and the newest events; without a
    leader, the events that are in the bucket
  * the leader's metrics, if its health port is reachable from here

A bundle of "support" has only harmless fields, such as names of groups, and addresses and
IDs of VMs. It never has keys, tokens, nonces, certificates, boot scripts, contents of
files, values of environment variables, or values in "args" and "vars". Objects with
secrets are listed by name and not read.

In texts of errors and alerts, a bundle of "support" keeps only numbers, times, words
that Nstance itself uses, and names that other parts of the bundle show. Read the bundle
before you send it.

Like "doctor", "support" tests the bucket: it writes one object and deletes it again.`,
		Example: `  nstance-admin support --storage-bucket my-bucket
  nstance-admin support --storage-bucket my-bucket --shard us-west-2a --since 2h --output bundle.tar.gz`,
	}
	o := new(supportOptions)
	cmd.Flags().StringVar(&o.output, "output", "",
		"file to write, which must not exist (default nstance-support-CLUSTER-SHARD-TIME.tar.gz)")
	cmd.Flags().StringVar(&o.shard, "shard", "",
		"only this shard (default: every shard of the bucket and of --servers)")
	cmd.Flags().DurationVar(&o.since, "since", 24*time.Hour,
		"only events that are not older than this, at most the newest 2000")
	o.add(cmd)
	o.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.checkSupport(o); err != nil {
			return err
		}
		return a.support(cmd.Context(), o)
	}
	return cmd
}

// checkSupport refuses wrong command lines. If the flags name no servers or no identity, it takes them from the
// environment or the saved context.
func (a *app) checkSupport(o *supportOptions) error {
	saved, err := a.currentContext()
	if err != nil {
		return err
	}
	o.servers = cmp.Or(o.servers, a.Getenv(envServers), saved.Servers)
	o.identityDir = cmp.Or(o.identityDir, a.Getenv(envIdentity), saved.IdentityDir)
	if _, err := endpoints.Parse(o.servers); err != nil {
		return usagef("server %w", err)
	}
	switch {
	case o.location.Bucket == "":
		return usagef("--storage-bucket is missing")
	case o.scope.shard != "" && ident.ValidateName(o.scope.shard) != nil:
		return usagef("--shard: %w", ident.ValidateName(o.scope.shard))
	case o.cluster != "" && ident.ValidateClusterName(o.cluster) != nil:
		return usagef("--cluster-id: %w", ident.ValidateClusterName(o.cluster))
	case o.since <= 0:
		return usagef("--since %s is not more than zero", o.since)
	case o.scope.timeout <= 0:
		return usagef("--request-timeout %s is not more than zero", o.scope.timeout)
	}
	return refuseExisting(o.output)
}

// supportRun is one run of the command support.
type supportRun struct {
	*app
	*supportOptions
	bundle  *support.Bundle
	bucket  objstore.Store // nil: it cannot be opened
	fleet   *fleet.Fleet   // nil: no leader can be asked
	entries []objstore.Entry
	cluster string
}

func (a *app) support(ctx context.Context, o *supportOptions) error {
	r := &supportRun{app: a, supportOptions: o, bundle: &support.Bundle{}}
	began := a.Now().UTC()
	r.readBucket(ctx)
	r.openFleet()
	if r.fleet != nil {
		defer r.fleet.Close()
	}
	shards := r.shards()
	for _, shard := range shards {
		r.note("Shard %s …", shard)
		r.readShard(ctx, shard)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.bundle.About = []support.Fact{{Name: "nstance-admin", Value: a.version}, {Name: "Time", Value: stamp(began)},
		{Name: "Cluster", Value: r.cluster}, {Name: "Shards", Value: list(shards)},
		{Name: "Storage", Value: o.location.Provider}}
	files, unread, err := r.bundle.Files()
	if err != nil {
		return err
	}
	shard := "all"
	if len(shards) == 1 {
		shard = shards[0]
	}
	name := fmt.Sprintf("nstance-support-%s-%s-%s", cmp.Or(r.cluster, "unknown"), shard,
		began.Format("20060102T150405Z"))
	path := cmp.Or(o.output, name+".tar.gz")
	size, err := writeNewFile(path, func(w io.Writer) error { return support.Write(w, name, files, began) })
	if err != nil {
		return err
	}
	return a.writeSupport(path, size, files, unread)
}

// readBucket opens the bucket and lists it.
func (r *supportRun) readBucket(ctx context.Context) {
	bucket, ctx, cancel, err := r.open(ctx, false)
	if err != nil {
		r.bundle.NoteUnread("the bucket", err)
		return
	}
	defer cancel()
	r.bucket, r.cluster = bucket, r.supportOptions.cluster
	if r.cluster == "" {
		state := clusterstate.New(clusterstate.Options{Cluster: bucket, Shard: bucket, Now: r.Now})
		if r.cluster, err = clusterOf(ctx, state); err != nil {
			r.bundle.NoteUnread("name of the cluster", err)
		}
	}
	_ = r.during("listing "+r.location.Bucket, func() error {
		r.entries, err = bucket.List(ctx, "")
		return nil
	})
	if err != nil {
		r.bundle.NoteUnread("list of the objects", err)
		return
	}
	type listed struct {
		Key      string    `json:"key,omitempty" support:"plain"`
		Foreign  string    `json:"foreign_key,omitempty" support:"words"` // not in the layout of the bucket
		Size     int64     `json:"size"`
		Modified time.Time `json:"modified"`
	}
	objects := []listed{}
	for _, e := range r.entries {
		object := listed{Key: e.Key, Size: e.Size, Modified: e.Modified.UTC()}
		if _, err := keys.Parse(e.Key); err != nil {
			object.Key, object.Foreign = "", e.Key
		}
		objects = append(objects, object)
	}
	r.put("objects.json", "names, sizes and times of the objects of the bucket", objects)
}

// put adds a document to the bundle.
func (r *supportRun) put(path, about string, v any) {
	if err := r.bundle.Add(path, about, v); err != nil {
		r.bundle.NoteUnread(path, err)
	}
}

func (a *app) writeSupport(path string, size int64, files []support.File, unread []support.Unread) error {
	var out bytes.Buffer
	var rows [][]cell
	for _, f := range files {
		rows = append(rows, plain(f.Path, num(len(f.Content)), f.About))
	}
	if err := writeTable(&out, a.style.out, []string{"FILE", "BYTES", "CONTENT"}, rows); err != nil {
		return err
	}
	if len(unread) > 0 {
		rows = nil
		for _, u := range unread {
			rows = append(rows, plain(u.What, u.Why))
		}
		out.WriteString("\n")
		if err := writeTable(&out, a.style.out, []string{"NOT READ", "WHY"}, rows); err != nil {
			return err
		}
	}
	out.WriteString("\nLeft out:\n")
	for _, text := range support.LeftOut {
		out.WriteString("  * " + text + "\n")
	}
	fmt.Fprintf(&out, "\n%s: %d bytes. Read it before you send it.\n", strings.TrimSpace(path), size)
	_, err := a.Stdout.Write(out.Bytes())
	return err
}

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-kit/nstance/services/api/messages"
	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/lastknown"
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
	keepFromSettings(cmd, "shard") // NSTANCE_ADMIN_SHARD does not make a bundle less useful
	cmd.Flags().DurationVar(&o.since, "since", 24*time.Hour,
		"only events that are not older than this, at most the newest 2000")
	o.add(cmd)
	o.reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkSupport(o); err != nil {
			return err
		}
		return a.support(cmd.Context(), o)
	}
	return cmd
}

// checkSupport refuses wrong command lines.
func checkSupport(o *supportOptions) error {
	if _, err := endpoints.Parse(o.servers); err != nil {
		return usagef("server %w", err)
	}
	switch {
	case o.location.Bucket == "":
		return errNoBucket
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
	files, err := r.bundle.Files()
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
	return a.line("%s\n%s: %d bytes. Read it before you send it.", files[0].Content, path, size)
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
	err = during(r.app, "listing "+r.location.Bucket, func() (err error) {
		r.entries, err = bucket.List(ctx, "")
		return err
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

const (
	// maxSupportEvents is the largest number of events in a bundle for each shard.
	maxSupportEvents = 2000
	// maxMetrics is the size limit of a server's metrics, in bytes. The rest is not read.
	maxMetrics = 8 << 20
)

// openFleet opens the connections to the leaders.
func (r *supportRun) openFleet() {
	var err error
	if r.fleet, err = r.app.fleet(&r.scope); err != nil {
		if hint := r.hintOf(err); hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		r.bundle.NoteUnread("leaders", err)
	}
}

// shards returns the shards that the bundle is about.
func (r *supportRun) shards() (shards []string) {
	if r.shard != "" {
		return []string{r.shard}
	}
	for _, entry := range r.entries {
		if key, err := keys.Parse(entry.Key); err == nil && key.Kind == keys.KindConfig {
			shards = append(shards, key.Shard)
		}
	}
	own, _ := contexts.ParseShardStorage(r.bucketFlags.shards) // checked when a bucket is opened
	shards = slices.AppendSeq(shards, maps.Keys(own))
	if r.fleet != nil {
		shards = append(shards, r.fleet.Shards()...)
	}
	if len(shards) == 0 {
		r.bundle.NoteUnread("shards",
			errors.New("no configuration of a shard is in the bucket, and no leader is known"))
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}

// bucketOf opens the bucket of a shard. It returns nil if it cannot.
func (r *supportRun) bucketOf(ctx context.Context, shard string) objstore.Store {
	if r.bucket == nil {
		return nil
	}
	bucket, err := r.opener(r.bucket)(ctx, shard)
	if err != nil {
		r.bundle.NoteUnread("bucket of shard "+shard, err)
		return nil
	}
	return bucket
}

// readShard adds everything about one shard to the bundle.
func (r *supportRun) readShard(ctx context.Context, shard string) {
	dir := "shards/" + shard + "/"
	servers, _ := endpoints.Parse(r.servers) // checked before
	found := during(r.app, "examining shard "+shard, func() diagnosis {
		return r.diagnose(ctx, &r.secretFlags, doctorOptions{shard: shard, identity: r.identityDir, servers: servers})
	})
	found.Consoles = nil // they may show anything
	r.put(dir+"doctor.json", "what nstance-admin doctor finds", found)
	var lock record.Lock
	var current *config.Shard
	bucket := r.bucketOf(ctx, shard)
	if bucket != nil {
		bucketCtx, cancel := context.WithTimeout(ctx, r.bucketFlags.timeout)
		defer cancel()
		state := clusterstate.New(clusterstate.Options{Cluster: r.bucket, Shard: bucket, ShardID: shard, Now: r.Now})
		lock = r.readLock(bucketCtx, state, shard, dir)
		current = r.readConfigurations(bucketCtx, state, bucket, shard, dir)
	}
	if !during(r.app, "asking shard "+shard, func() bool { return r.readLeader(ctx, shard, dir) }) && bucket != nil {
		r.readJournal(ctx, bucket, shard, dir)
	}
	r.readMetrics(ctx, shard, dir, current, lock)
}

// readLock adds two records to the bundle: the lock of the shard's election, and the last report on whether a new
// server became ready. It returns the lock.
func (r *supportRun) readLock(ctx context.Context, state *clusterstate.State, shard, dir string) record.Lock {
	lock, _, err := state.ReadLock(ctx, shard)
	if err != nil {
		r.bundle.NoteUnread("lock of shard "+shard, err)
	} else {
		r.put(dir+"lock.json", "the lock of the election", lock)
	}
	report, _, err := state.ReadServerReport(ctx)
	if err == nil {
		r.put(dir+"server-report.json", "the last report about a new server", report)
	} else if !errors.Is(err, objstore.ErrNotFound) {
		r.bundle.NoteUnread("report of the newest server of shard "+shard, err)
	}
	return lock
}

// readConfigurations adds the shard's configurations and dynamic groups to the bundle. It returns the configuration in
// force or, if that is not known, the newest one.
func (r *supportRun) readConfigurations(ctx context.Context, state *clusterstate.State, bucket objstore.Store, shard,
	dir string) (current *config.Shard) {
	newest, token, err := state.ReadConfig(ctx, shard)
	if err == nil {
		current, _ = config.ParseStored("config", newest)
		err = support.AddJSON[config.Shard](r.bundle, dir+"config-newest.json", "the newest configuration", newest)
	}
	if err != nil {
		r.bundle.NoteUnread("newest configuration of shard "+shard, err)
	}
	applied, err := state.UnverifiedApplied(ctx)
	if err == nil {
		about := "the configuration in force: an earlier one than the newest"
		if applied.Source == string(token) {
			about = "the configuration in force: the newest"
		}
		if parsed, _ := config.ParseApplied("applied", applied.Body); parsed != nil {
			current = parsed
		}
		err = support.AddJSON[config.Shard](r.bundle, dir+"config-in-force.json", about, applied.Body)
	}
	if err != nil {
		r.bundle.NoteUnread("configuration in force of shard "+shard, err)
	}
	object, err := bucket.Get(ctx, keys.Groups(shard))
	if err == nil {
		err = support.AddJSON[config.Groups](r.bundle, dir+"dynamic-groups.json", "dynamic groups and overrides",
			object.Body)
	}
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		r.bundle.NoteUnread("dynamic groups of shard "+shard, err)
	}
	return current
}

// readLeader adds the answers of the shard's leader to the bundle. It returns true if the leader also returned the
// events of its journal.
func (r *supportRun) readLeader(ctx context.Context, shard, dir string) bool {
	if r.fleet == nil {
		return false
	}
	shards := []string{shard}
	status := fleet.Call(ctx, r.fleet, shards, fleet.Client.GetShardStatus, &nstancev1.GetShardStatusRequest{})[0]
	if status.Err != nil {
		r.bundle.NoteUnread("leader of shard "+shard, status.Err)
		return false
	}
	r.put(dir+"status.json", "the leader's status", fleet.MessageOf(status.Message))
	groups := fleet.Call(ctx, r.fleet, shards, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})[0]
	if groups.Err != nil {
		r.bundle.NoteUnread("groups of shard "+shard, groups.Err)
	} else {
		r.put(dir+"groups.json", "the groups of the tenant of your identity", fleet.MessageOf(groups.Message))
	}
	explanations := []fleet.Message[*nstancev1.ExplainGroupResponse]{}
	for _, group := range groups.Message.GetGroups() {
		answer := fleet.Call(ctx, r.fleet, shards, fleet.Client.ExplainGroup,
			&nstancev1.ExplainGroupRequest{Group: group.GetGroup()})[0]
		if answer.Err != nil {
			r.bundle.NoteUnread("explanation of group "+group.GetGroup()+" of shard "+shard, answer.Err)
			continue
		}
		explanations = append(explanations, fleet.MessageOf(answer.Message))
	}
	r.put(dir+"explanations.json", "what the leader would do next for each group, and why", explanations)
	history := fleet.Call(ctx, r.fleet, shards, fleet.Client.ListEvents, &nstancev1.ListEventsRequest{
		Filter: &nstancev1.EventFilter{Since: timestamppb.New(r.Now().Add(-r.since))}})[0]
	if history.Err != nil {
		r.bundle.NoteUnread("events of the leader of shard "+shard, history.Err)
		return false
	}
	r.putEvents(dir, "the newest events, as the leader has them", history.Message.GetEvents())
	return true
}

func (r *supportRun) putEvents(dir, about string, events []*nstancev1.JournalEvent) {
	events = events[max(0, len(events)-maxSupportEvents):]
	r.put(dir+"events.json", about, fleet.MessageOf(&nstancev1.ListEventsResponse{Events: events}))
}

// readJournal reads the newest events of the journal from the bucket and adds them to the bundle.
func (r *supportRun) readJournal(ctx context.Context, bucket objstore.Store, shard, dir string) {
	ctx, cancel := context.WithTimeout(ctx, r.bucketFlags.timeout)
	defer cancel()
	parts, err := lastknown.Parts(ctx, bucket, shard)
	if err != nil {
		r.bundle.NoteUnread("journal of shard "+shard, err)
		return
	}
	r.putEvents(dir, "the newest events in the bucket", r.readParts(ctx, bucket, shard, parts))
}

// readParts reads parts of the journal, the newest first, until it has enough events. It skips parts that cannot be
// decoded, and lists them in the bundle. It stops when the bucket fails.
func (r *supportRun) readParts(ctx context.Context, bucket objstore.Store, shard string,
	parts []keys.Key) []*nstancev1.JournalEvent {
	since := r.Now().Add(-r.since)
	var events []*nstancev1.JournalEvent
	for _, part := range slices.Backward(parts) {
		if len(events) >= maxSupportEvents || part.Time.Before(since.Truncate(24*time.Hour)) {
			break
		}
		read, err := lastknown.ReadPart(ctx, bucket, part)
		if err != nil {
			r.bundle.NoteUnread(keys.Journal(shard, part.Time, part.Term, part.First), err)
			if lastknown.Damaged(err) {
				continue
			}
			break
		}
		for _, e := range slices.Backward(read) {
			if e.At.Before(since) {
				continue
			}
			events = append(events, messages.Event(e))
		}
	}
	slices.Reverse(events)
	return events
}

// readMetrics reads the metrics from the health port of the shard's leader and adds them to the bundle.
func (r *supportRun) readMetrics(ctx context.Context, shard, dir string, current *config.Shard, lock record.Lock) {
	text, err := fetchMetrics(ctx, metricsAddress(current, lock))
	if err != nil {
		r.bundle.NoteUnread("metrics of shard "+shard, err)
		return
	}
	r.bundle.AddMetrics(dir+"metrics.txt", "metrics of the leader", text)
}

// metricsAddress returns the address of the leader's health port, or "" if it is not known. If the configuration has no
// host, the server chooses one, and metricsAddress takes the host from the lock.
func metricsAddress(current *config.Shard, lock record.Lock) string {
	if current == nil {
		return ""
	}
	server := current.WithDefaults().Server
	host, port, err := net.SplitHostPort(cmp.Or(server.Advertise.Health, server.Bind.Health))
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, _, err = net.SplitHostPort(lock.Addresses.Operator); err != nil {
			return ""
		}
	}
	return net.JoinHostPort(host, port)
}

func fetchMetrics(ctx context.Context, addr string) (string, error) {
	if addr == "" {
		return "", errors.New("the address of the leader's health port is not known")
	}
	ctx, cancel := context.WithTimeout(ctx, portTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, // no proxy: the port is the server's own
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxMetrics))
	switch {
	case err != nil:
		return "", err
	case answer.StatusCode != http.StatusOK, !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain"):
		return "", fmt.Errorf("%s answers %s: it is no health port of a server", addr, answer.Status)
	}
	return string(body), nil
}

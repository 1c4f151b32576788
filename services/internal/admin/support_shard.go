package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/support"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

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

// readShard adds everything about one shard to the bundle.
func (r *supportRun) readShard(ctx context.Context, shard string) {
	dir := "shards/" + shard + "/"
	servers, _ := endpoints.Parse(r.servers) // checked before
	var found diagnosis
	_ = r.during("examining shard "+shard, func() error {
		found = r.diagnose(ctx, &r.secretFlags, doctorOptions{shard: shard, identity: r.identityDir, servers: servers})
		return nil
	})
	found.Consoles = nil // they may show anything
	r.put(dir+"doctor.json", "what nstance-admin doctor finds", found)
	var lock record.Lock
	var current *config.Shard
	if r.bucket != nil {
		bucketCtx, cancel := context.WithTimeout(ctx, r.bucketFlags.timeout)
		defer cancel()
		state := clusterstate.New(clusterstate.Options{Cluster: r.bucket, Shard: r.bucket, ShardID: shard, Now: r.Now})
		lock = r.readLock(bucketCtx, state, shard, dir)
		current = r.readConfigurations(bucketCtx, state, shard, dir)
	}
	var known bool
	_ = r.during("asking shard "+shard, func() error {
		known = r.readLeader(ctx, shard, dir)
		return nil
	})
	if !known {
		r.readJournal(ctx, shard, dir)
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
func (r *supportRun) readConfigurations(ctx context.Context, state *clusterstate.State, shard,
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
	object, err := r.bucket.Get(ctx, keys.Groups(shard))
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
func (r *supportRun) readJournal(ctx context.Context, shard, dir string) {
	if r.bucket == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, r.bucketFlags.timeout)
	defer cancel()
	parts, err := journalParts(ctx, r.bucket, shard)
	if err != nil {
		r.bundle.NoteUnread("journal of shard "+shard, err)
		return
	}
	r.putEvents(dir, "the newest events in the bucket", r.readParts(ctx, shard, parts))
}

// journalParts lists the parts of a shard's journal, from the oldest to the newest.
func journalParts(ctx context.Context, bucket objstore.Store, shard string) (parts []keys.Key, err error) {
	entries, err := bucket.List(ctx, keys.JournalPrefix(shard))
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if key, err := keys.Parse(entry.Key); err == nil {
			parts = append(parts, key)
		}
	}
	slices.SortFunc(parts, func(a, b keys.Key) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Term, b.Term), cmp.Compare(a.First, b.First))
	})
	return parts, nil
}

// readParts reads parts of the journal, the newest first, until it has enough events. It skips parts that cannot be
// decoded, and lists them in the bundle. It stops when the bucket fails.
func (r *supportRun) readParts(ctx context.Context, shard string, parts []keys.Key) []*nstancev1.JournalEvent {
	since := r.Now().Add(-r.since)
	var events []*nstancev1.JournalEvent
	for _, part := range slices.Backward(parts) {
		if len(events) >= maxSupportEvents || part.Time.Before(since.Truncate(24*time.Hour)) {
			break
		}
		key := keys.Journal(shard, part.Time, part.Term, part.First)
		object, err := r.bucket.Get(ctx, key)
		if errors.Is(err, objstore.ErrNotFound) {
			continue // its retention ended since it was listed
		}
		if err != nil {
			r.bundle.NoteUnread("journal from "+key+" back", err)
			break
		}
		read, err := record.DecodeEvents(object.Body)
		if err != nil {
			r.bundle.NoteUnread(key, err)
			continue
		}
		for _, e := range slices.Backward(read) {
			if e.At.Before(since) {
				continue
			}
			events = append(events, &nstancev1.JournalEvent{At: timestamppb.New(e.At), Kind: string(e.Kind),
				Group: e.Group, InstanceId: e.Instance, Replaces: e.Replaces, Cause: e.Cause, Actor: e.Actor,
				Message: e.Message, TookSeconds: e.TookSeconds, Term: e.Term,
				Position: fmt.Sprintf("%d-%d", e.Term, e.Sequence)})
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

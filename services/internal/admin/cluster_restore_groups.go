package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

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
		return []finding{{"groups of shard " + name, true, "not checked: its dynamic groups cannot be read", ""}}, nil
	}
	groups, problems := shard.Merged(dynamic)
	for _, p := range problems.Errors() {
		found = append(found, finding{"groups of shard " + name, false, "a group gets no new instances: " + p.String(),
			"restore config/ and groups/ of the same time, or correct the configuration after the restore"})
	}
	records, err := r.countRecords(ctx, name)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, group := range slices.SortedFunc(maps.Keys(records), compareGroups) {
		count := records[group]
		if _, ok := groups[group]; ok {
			total += count
			continue
		}
		found = append(found, finding{fmt.Sprintf("group %s of shard %s", group, name), false,
			fmt.Sprintf("%d instances belong to it, and there is no such group: after a restore the leader drains and "+
				"deletes their VMs", count),
			"restore config/ and groups/ of the same time as the records, or add the group before servers start"})
	}
	if found == nil {
		found = []finding{{"groups of shard " + name, true, fmt.Sprintf("%d groups with %d instances", len(groups),
			total), ""}}
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
		rec, err := record.DecodeInstance(object.Body)
		if err != nil || rec.Group == "" || rec.State == record.Deleting || rec.State == record.Deleted {
			continue
		}
		counts[config.GroupKey{Tenant: rec.Tenant, Group: rec.Group}]++
	}
	return counts, nil
}

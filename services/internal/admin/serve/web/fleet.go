package web

import (
	"net/http"
	"net/url"
	"sync"
	"time"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// fleetView shows all shards, one row each.
type fleetView struct{ Shards []shardView }

// shardView is one shard with its groups.
type shardView struct {
	Shard  string
	Err    *problem
	Status *nstancev1.GetShardStatusResponse
	Groups []*nstancev1.GroupStatus
	// Desired, Actual and Healthy are sums over the shard's groups.
	Desired, Actual, Healthy uint32
	Alerts                   []alert
	Replacements             statistics
	// LostSince is when the shard stopped answering. Lock is the election lock of a shard that does not answer. It is
	// nil if the shard answers or if the page cannot read the bucket.
	LostSince time.Time
	Lock      *Lock
}

func (p *page) showFleet(w http.ResponseWriter, r *http.Request) error {
	live := p.liveURL(nil)
	view := fleetView{Shards: p.shards(r, p.Fleet.Shards())}
	return p.renderLive(w, r, http.StatusOK, "fleet", "Fleet", live, view)
}

func (p *page) showShard(w http.ResponseWriter, r *http.Request) error {
	shard, err := p.shardOf(r)
	if err != nil {
		return err
	}
	live := p.liveURL(url.Values{"shard": {shard}})
	return p.renderLive(w, r, http.StatusOK, "shard", "Shard "+shard, live, p.shards(r, []string{shard})[0])
}

// shards queries the named shards and returns one view for each of them.
func (p *page) shards(r *http.Request, names []string) []shardView {
	var statuses []fleet.Answer[*nstancev1.GetShardStatusResponse]
	var groups []fleet.Answer[*nstancev1.ListGroupsResponse]
	var wg sync.WaitGroup
	wg.Go(func() {
		statuses = fleet.Call(r.Context(), p.Fleet, names, fleet.Client.GetShardStatus,
			&nstancev1.GetShardStatusRequest{})
	})
	wg.Go(func() {
		groups = fleet.Call(r.Context(), p.Fleet, names, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})
	})
	wg.Wait()
	views := make([]shardView, len(names))
	for i, name := range names {
		view := shardView{Shard: name, Status: statuses[i].Message, Groups: groups[i].Message.GetGroups(),
			Alerts: p.hub.alerts(name, ""), Replacements: p.hub.statistics(name, "")}
		for _, g := range view.Groups {
			view.Desired += g.GetSize()
			view.Actual += g.GetActualSize()
			view.Healthy += g.GetHealthy()
		}
		for _, err := range []*fleet.Error{statuses[i].Err, groups[i].Err} {
			if err != nil {
				problem := errorView(err)
				view.Err = &problem
				_, view.LostSince = p.hub.lost(name)
			}
		}
		views[i] = view
	}
	if p.Bucket == nil {
		return views
	}
	for i := range views {
		if view := &views[i]; view.Err != nil && view.Err.Unavailable {
			wg.Go(func() {
				lock := p.Bucket.Lock(r.Context(), view.Shard)
				view.Lock = &lock
			})
		}
	}
	wg.Wait()
	return views
}

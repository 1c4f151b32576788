package web

import (
	"net/http"
	"sync"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// configView shows the configurations of all shards.
type configView struct {
	Shards []shardConfig
	// NoBucket means that the page cannot read the bucket. It then shows no comparisons of configurations.
	NoBucket bool
}

// shardConfig is the configuration of one shard. Err is the error of the call to the leader, and CompareErr is the
// error of reading the bucket.
type shardConfig struct {
	Shard           string
	Config          *nstancev1.GetConfigStatusResponse
	Groups          []*nstancev1.GroupStatus
	Err, CompareErr *problem
	Comparison      *Comparison
}

// showConfig shows the configuration of every shard.
func (p *page) showConfig(w http.ResponseWriter, r *http.Request) error {
	live := p.liveURL(nil)
	names := p.Fleet.Shards()
	view := configView{Shards: make([]shardConfig, len(names)), NoBucket: p.Bucket == nil}
	groups := start(p, r, names, fleet.Client.ListGroups, &nstancev1.ListGroupsRequest{})
	var wg sync.WaitGroup
	if p.Bucket != nil {
		for i, name := range names {
			wg.Go(func() { view.Shards[i].Comparison, view.Shards[i].CompareErr = p.compare(r, name) })
		}
	}
	for i, answer := range fleet.Call(r.Context(), p.Fleet, names, fleet.Client.GetConfigStatus,
		&nstancev1.GetConfigStatusRequest{}) {
		view.Shards[i].Shard, view.Shards[i].Config = answer.Shard, answer.Message
		if answer.Err != nil {
			view.Shards[i].Err = errorView(answer.Err)
		}
	}
	for i, answer := range groups() {
		view.Shards[i].Groups = answer.Message.GetGroups()
	}
	wg.Wait()
	return p.renderLive(w, r, http.StatusOK, "config", "Configuration", live, view)
}

// compare compares the configuration that a leader of the shard applied last with the newest configuration in the
// bucket.
func (p *page) compare(r *http.Request, shard string) (*Comparison, *problem) {
	comparison, err := p.Bucket.Compare(r.Context(), shard)
	if err != nil {
		return nil, &problem{Message: "The configurations cannot be compared: " + err.Error()}
	}
	return &comparison, nil
}

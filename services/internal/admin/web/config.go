package web

import (
	"net/http"
)

// showConfig shows the configuration of every shard.
func (p *page) showConfig(w http.ResponseWriter, r *http.Request) error {
	live := p.liveURL(nil)
	return p.renderLive(w, r, http.StatusOK, "config", "Configuration", live,
		fleetView{p.shards(r, p.Fleet.Shards())})
}

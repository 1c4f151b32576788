package ec2

import (
	"time"
)

// spotRequest is the spot request of an instance.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html
type spotRequest struct {
	entity
	instance   *instance
	kind       string // one-time, persistent
	behavior   string // terminate, stop, hibernate
	price      string
	state      string // active, closed, cancelled, disabled
	statusCode string
	updated    time.Time
}

// checkMarket refuses market options that do not fit together.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SpotMarketOptions.html
func checkMarket(m *marketOptions) error {
	if m == nil {
		return nil
	}
	o := m.SpotOptions
	switch kind := value(m.MarketType); {
	case kind == "capacity-block" && o != nil:
		return invalidCombination("SpotOptions cannot be used with the market type capacity-block.")
	case kind != "spot" && kind != "capacity-block":
		return failf("InvalidParameterValue", "Value (%s) for parameter MarketType is invalid.", kind)
	}
	if o == nil {
		return nil
	}
	kind, behavior := orElse(o.SpotInstanceType, "one-time"), orElse(o.InstanceInterruptionBehavior, "terminate")
	switch {
	case kind != "one-time" && kind != "persistent":
		return invalid("SpotInstanceType", kind)
	case behavior != "terminate" && behavior != "stop" && behavior != "hibernate":
		return invalid("InstanceInterruptionBehavior", behavior)
	case behavior != "terminate" && kind != "persistent":
		return invalidCombination("Instance interruption behavior " + behavior +
			" requires a persistent Spot Instance request.")
	case o.ValidUntil != nil && kind != "persistent":
		return invalidCombination("A one-time Spot Instance request cannot have validUntil.")
	}
	return nil
}

func (s *Service) createSpotRequest(i *instance) *spotRequest {
	r := &spotRequest{entity: s.entity("sir"), instance: i, kind: "one-time", behavior: "terminate", state: "active"}
	if o := i.data.InstanceMarketOptions.SpotOptions; o != nil {
		r.kind, r.behavior, r.price = orElse(o.SpotInstanceType, r.kind),
			orElse(o.InstanceInterruptionBehavior, r.behavior), value(o.MaxPrice)
	}
	s.setSpot(r, "active", "fulfilled")
	s.spotRequests[r.id] = r
	return r
}

func (s *Service) setSpot(r *spotRequest, state, code string) {
	r.state, r.statusCode, r.updated = state, code, s.cfg.Now()
}

// spotEnded records an instance's end in its spot request. The request is closed, even a persistent one, because the
// fake does not fulfill a request again.
func (s *Service) spotEnded(i *instance) {
	r := i.spot
	if r == nil || r.state == "closed" || r.state == "cancelled" {
		return
	}
	code := "instance-terminated-by-user"
	if i.reason == bySpot {
		code = "instance-terminated-no-capacity"
	}
	s.setSpot(r, "closed", code)
}

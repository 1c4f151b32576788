package ec2

import (
	"cmp"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// spotRequest is the request behind a spot instance. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html
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

// spotWords are the messages of the status codes in use.
var spotWords = map[string]string{
	"fulfilled":                   "Your spot request is fulfilled.",
	"marked-for-termination":      "Your spot instance is marked for termination.",
	"marked-for-stop":             "Your spot instance is marked for stop.",
	"instance-terminated-by-user": "Your spot instance was terminated by user.",
	"instance-terminated-no-capacity": "Your Spot instance was terminated because there is no Spot capacity " +
		"available that matches your request.",
	"instance-stopped-no-capacity": "Your Spot instance was stopped because there is no Spot capacity " +
		"available that matches your request.",
	"instance-stopped-by-user":              "Your spot instance was stopped by user.",
	"request-canceled-and-instance-running": "Your Spot request was canceled, and the instance is still running.",
	"canceled-before-fulfillment":           "Your Spot request was canceled before it was fulfilled.",
}

// checkMarket refuses market options that do not fit together.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SpotMarketOptions.html
func checkMarket(m *marketOptions) error {
	if m == nil {
		return nil
	}
	if kind := value(m.MarketType); kind != "spot" {
		return failf("InvalidParameterValue", "Value (%s) for parameter MarketType is invalid.", kind)
	}
	o := m.SpotOptions
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

// spotEnded records an instance's end in its request: a one-time request is closed; a persistent one too, as this cloud
// does not fill it again.
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

type spotRequestXML struct {
	CreateTime   wire.Time         `xml:"createTime"`
	InstanceID   string            `xml:"instanceId,omitempty"`
	Behavior     string            `xml:"instanceInterruptionBehavior"`
	LaunchedZone string            `xml:"launchedAvailabilityZone"`
	Launch       launchSpecXML     `xml:"launchSpecification"`
	Product      string            `xml:"productDescription"`
	ID           string            `xml:"spotInstanceRequestId"`
	SpotPrice    string            `xml:"spotPrice"`
	State        string            `xml:"state"`
	Status       spotRequestStatus `xml:"status"`
	Tags         []Tag             `xml:"tagSet>item"`
	Type         string            `xml:"type"`
}

type spotRequestStatus struct {
	Code       string    `xml:"code"`
	Message    string    `xml:"message"`
	UpdateTime wire.Time `xml:"updateTime"`
}

type launchSpecXML struct {
	ImageID      string        `xml:"imageId"`
	InstanceType string        `xml:"instanceType"`
	Groups       []groupRefXML `xml:"groupSet>item"`
	SubnetID     string        `xml:"subnetId"`
}

func (s *Service) spotRequestXML(r *spotRequest) spotRequestXML {
	out := spotRequestXML{
		CreateTime: wire.Time{Time: r.created}, Behavior: r.behavior, Product: "Linux/UNIX", ID: r.id,
		SpotPrice: cmp.Or(r.price, "1.000000"), State: r.state, Type: r.kind,
		Status: spotRequestStatus{Code: r.statusCode, Message: spotWords[r.statusCode],
			UpdateTime: wire.Time{Time: r.updated}}, Tags: s.tagList(r.id),
	}
	if i := r.instance; i != nil {
		out.InstanceID, out.LaunchedZone = i.id, i.zone
		out.Launch = launchSpecXML{ImageID: i.image.id, InstanceType: i.kind.name, Groups: s.groupRefs(i.groups),
			SubnetID: i.subnet}
	}
	return out
}

// spotFilters are the filters of DescribeSpotInstanceRequests.
var spotFilters = map[string]func(spotRequestXML) []string{
	"create-time":                one(func(r spotRequestXML) string { return timestamp(r.CreateTime.Time) }),
	"instance-id":                one(func(r spotRequestXML) string { return r.InstanceID }),
	"launch.image-id":            one(func(r spotRequestXML) string { return r.Launch.ImageID }),
	"launch.instance-type":       one(func(r spotRequestXML) string { return r.Launch.InstanceType }),
	"launched-availability-zone": one(func(r spotRequestXML) string { return r.LaunchedZone }),
	"product-description":        one(func(r spotRequestXML) string { return r.Product }),
	"spot-instance-request-id":   one(func(r spotRequestXML) string { return r.ID }),
	"spot-price":                 one(func(r spotRequestXML) string { return r.SpotPrice }),
	"state":                      one(func(r spotRequestXML) string { return r.State }),
	"status-code":                one(func(r spotRequestXML) string { return r.Status.Code }),
	"type":                       one(func(r spotRequestXML) string { return r.Type }),
}

func (s *Service) describeSpotInstanceRequests(c *wire.Call) (any, error) {
	var in struct {
		DryRun     bool
		Filter     []Filter
		MaxResults int
		NextToken  string
		ID         []string `query:"SpotInstanceRequestId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	found, next, err := find(s, s.spotRequests, query{in.ID, in.Filter, in.MaxResults, in.NextToken},
		through(s.spotRequestXML, spotFilters))
	if err != nil {
		return nil, err
	}
	var out struct {
		Requests  []spotRequestXML `xml:"spotInstanceRequestSet>item"`
		NextToken string           `xml:"nextToken,omitempty"`
	}
	for _, r := range found {
		out.Requests = append(out.Requests, s.spotRequestXML(r))
	}
	out.NextToken = next
	return out, nil
}

func (s *Service) cancelSpotInstanceRequests(c *wire.Call) (any, error) {
	var in struct {
		DryRun bool
		ID     []string `query:"SpotInstanceRequestId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if len(in.ID) == 0 {
		return nil, missing("SpotInstanceRequestId")
	}
	if err := s.allow(c, c.Action, in.ID...); err != nil {
		return nil, err
	}
	for _, id := range in.ID {
		if err := s.exists(id); err != nil {
			return nil, err
		}
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	type item struct {
		ID    string `xml:"spotInstanceRequestId"`
		State string `xml:"state"`
	}
	var out struct {
		Requests []item `xml:"spotInstanceRequestSet>item"`
	}
	for _, id := range in.ID {
		if r := s.spotRequests[id]; r.state == "active" || r.state == "open" || r.state == "disabled" {
			s.setSpot(r, "cancelled", "request-canceled-and-instance-running")
		}
		out.Requests = append(out.Requests, item{id, "cancelled"})
	}
	return out, nil
}

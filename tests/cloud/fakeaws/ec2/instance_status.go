package ec2

import (
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// describeInstanceStatus tells of running instances only, unless it is told to tell of all.
func (s *Service) describeInstanceStatus(c *wire.Call) (any, error) {
	var in struct {
		DryRun              bool
		Filter              []Filter
		IncludeAllInstances bool
		InstanceID          []string `query:"InstanceId"`
		MaxResults          int
		NextToken           string
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
	table := s.instances
	if len(in.InstanceID) > 0 {
		table = map[string]*instance{}
		for _, id := range in.InstanceID {
			i, err := s.instanceByID(id)
			if err != nil {
				return nil, err
			}
			table[id] = i
		}
	}
	if !in.IncludeAllInstances {
		running := map[string]*instance{}
		for id, i := range table {
			if i.state == stateRunning {
				running[id] = i
			}
		}
		table = running
	}
	found, next, err := find(s, table, query{filters: in.Filter, maxResults: in.MaxResults, nextToken: in.NextToken},
		through((*instance).status, statusFilters))
	if err != nil {
		return nil, err
	}
	var out struct {
		Items     []statusXML `xml:"instanceStatusSet>item"`
		NextToken string      `xml:"nextToken,omitempty"`
	}
	for _, i := range found {
		out.Items = append(out.Items, i.status())
	}
	out.NextToken = next
	return out, nil
}

type statusXML struct {
	Zone           string        `xml:"availabilityZone"`
	ID             string        `xml:"instanceId"`
	State          stateXML      `xml:"instanceState"`
	InstanceStatus statusSummary `xml:"instanceStatus"`
	SystemStatus   statusSummary `xml:"systemStatus"`
	EbsStatus      statusSummary `xml:"attachedEbsStatus"`
}

type statusSummary struct {
	Details []statusDetail `xml:"details>item"`
	Status  string         `xml:"status"`
}

type statusDetail struct {
	Name   string `xml:"name"`
	Status string `xml:"status"`
}

func (i *instance) status() statusXML {
	summary, reach := "not-applicable", ""
	if i.state == stateRunning {
		summary, reach = "ok", "passed"
		if i.impaired {
			summary, reach = "impaired", "failed"
		}
	}
	check := statusSummary{Status: summary}
	if reach != "" {
		check.Details = []statusDetail{{Name: "reachability", Status: reach}}
	}
	system := check
	if i.impaired && i.state == stateRunning {
		system = statusSummary{Status: "ok", Details: []statusDetail{{Name: "reachability", Status: "passed"}}}
	}
	return statusXML{Zone: i.zone, ID: i.id, State: stateOf(i.state), InstanceStatus: check, SystemStatus: system,
		EbsStatus: system}
}

// statusFilters are the filters of DescribeInstanceStatus.
var statusFilters = map[string]func(statusXML) []string{
	"attached-ebs-status.status":   one(func(x statusXML) string { return x.EbsStatus.Status }),
	"availability-zone":            one(func(x statusXML) string { return x.Zone }),
	"instance-state-code":          one(func(x statusXML) string { return strconv.Itoa(x.State.Code) }),
	"instance-state-name":          one(func(x statusXML) string { return x.State.Name }),
	"instance-status.reachability": one(func(x statusXML) string { return detail(x.InstanceStatus) }),
	"instance-status.status":       one(func(x statusXML) string { return x.InstanceStatus.Status }),
	"system-status.reachability":   one(func(x statusXML) string { return detail(x.SystemStatus) }),
	"system-status.status":         one(func(x statusXML) string { return x.SystemStatus.Status }),
}

func detail(s statusSummary) string {
	if len(s.Details) == 0 {
		return ""
	}
	return s.Details[0].Status
}

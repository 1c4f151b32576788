package autoscaling

import (
	"slices"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type groupXML struct {
	settings
	AutoScalingGroupARN  string
	AutoScalingGroupName string
	CreatedTime          wire.Time
	Instances            []memberXML      `xml:"Instances>member"`
	Status               string           `xml:",omitempty"`
	Tags                 []tagDescription `xml:"Tags>member"`
	TargetGroupARNs      []string         `xml:"TargetGroupARNs>member"`
}

func (s *Service) xml(g *group, instances bool) groupXML {
	out := groupXML{
		settings: g.settings, AutoScalingGroupARN: s.arn(g, ""), AutoScalingGroupName: g.name,
		CreatedTime: wire.Time{Time: g.created}, TargetGroupARNs: g.targets,
		Tags: g.tagDescriptions(),
	}
	if out.ServiceLinkedRoleARN == nil {
		role := "arn:aws:iam::" + s.cfg.Account +
			":role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
		out.ServiceLinkedRoleARN = &role
	}
	if g.deleting {
		out.Status = "Delete in progress"
	}
	for _, m := range g.members {
		if instances {
			out.Instances = append(out.Instances, m.xml())
		}
	}
	return out
}

func (s *Service) describeGroups(c *wire.Call) (any, error) {
	var in struct {
		AutoScalingGroupNames []string
		IncludeInstances      *bool
		MaxRecords            *int
		NextToken             string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	var found []*group
	for _, g := range s.sorted() {
		if len(in.AutoScalingGroupNames) == 0 || slices.Contains(in.AutoScalingGroupNames, g.name) {
			found = append(found, g)
		}
	}
	items, next, err := page(found, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	var out struct {
		Groups    []groupXML `xml:"AutoScalingGroups>member"`
		NextToken string     `xml:",omitempty"`
	}
	for _, g := range items {
		out.Groups = append(out.Groups, s.xml(g, orElse(in.IncludeInstances, true)))
	}
	out.NextToken = next
	return out, nil
}

func (s *Service) describeActivities(c *wire.Call) (any, error) {
	var in struct {
		ActivityIds          []string
		AutoScalingGroupName string
		IncludeDeletedGroups bool
		MaxRecords           *int
		NextToken            string
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := allowAny(c); err != nil {
		return nil, err
	}
	if in.AutoScalingGroupName != "" && !in.IncludeDeletedGroups {
		if _, err := s.group(in.AutoScalingGroupName); err != nil {
			return nil, err
		}
	}
	var found []activity
	for _, a := range slices.Backward(s.activities) { // newest first
		switch {
		case in.AutoScalingGroupName != "" && a.Group != in.AutoScalingGroupName,
			len(in.ActivityIds) > 0 && !slices.Contains(in.ActivityIds, a.ID),
			a.GroupState == "Deleted" && !in.IncludeDeletedGroups:
			continue
		}
		found = append(found, *a)
	}
	items, next, err := page(found, in.MaxRecords, in.NextToken)
	if err != nil {
		return nil, err
	}
	return struct {
		Activities []activity `xml:"Activities>member"`
		NextToken  string     `xml:",omitempty"`
	}{items, next}, nil
}

func itoa(n int) string { return strconv.Itoa(n) }

func boolText(b bool) string { return strconv.FormatBool(b) }

package ec2

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// zoneID returns the ID of a zone, such as usw2-az1 for the first zone of us-west-2.
func (s *Service) zoneID(zone string) string {
	parts := strings.Split(s.cfg.Region, "-")
	short := parts[0]
	if len(parts) == 3 {
		short += map[string]string{
			"north": "n", "south": "s", "east": "e", "west": "w", "central": "c", "northeast": "ne", "northwest": "nw",
			"southeast": "se", "southwest": "sw",
		}[parts[1]] + parts[2]
	}
	return short + "-az" + strconv.Itoa(slices.Index(s.cfg.Zones, zone)+1)
}

type zoneXML struct {
	Name          string `xml:"zoneName"`
	ID            string `xml:"zoneId"`
	State         string `xml:"zoneState"`
	Region        string `xml:"regionName"`
	OptIn         string `xml:"optInStatus"`
	Group         string `xml:"groupName"`
	BorderGroup   string `xml:"networkBorderGroup"`
	Type          string `xml:"zoneType"`
	GroupLongName string `xml:"groupLongName"`
}

func (s *Service) describeZones(c *wire.Call) (any, error) {
	var in struct {
		AllAvailabilityZones bool // no effect: all zones are available without opt-in
		ZoneName             []string
		ZoneID               []string `query:"ZoneId"`
		Filter               []Filter
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, "DescribeAvailabilityZones"); err != nil {
		return nil, err
	}
	for _, name := range in.ZoneName {
		if !slices.Contains(s.cfg.Zones, name) {
			return nil, failf("InvalidParameterValue", "Invalid availability zone: [%s]", name)
		}
	}
	for _, id := range in.ZoneID {
		if !slices.ContainsFunc(s.cfg.Zones, func(zone string) bool { return s.zoneID(zone) == id }) {
			return nil, failf("InvalidParameterValue", "Invalid availability zone-id: [%s]", id)
		}
	}
	var zones []zoneXML
	for _, name := range s.cfg.Zones {
		zone := zoneXML{
			Name: name, ID: s.zoneID(name), State: "available", Region: s.cfg.Region, OptIn: "opt-in-not-required",
			Group:       s.cfg.Region + "-zg-1",
			BorderGroup: s.cfg.Region, Type: "availability-zone", GroupLongName: s.cfg.Region + " 1",
		}
		fits, err := matches(in.Filter, nil, func(filter string) ([]string, bool) {
			value, known := map[string]string{
				"group-name": zone.Group, "group-long-name": zone.GroupLongName, "opt-in-status": zone.OptIn,
				"region-name": zone.Region, "state": zone.State,
				"zone-id": zone.ID, "zone-name": zone.Name, "zone-type": zone.Type,
			}[filter]
			return []string{value}, known || slices.Contains([]string{"message", "parent-zone-id", "parent-zone-name"},
				filter)
		})
		if err != nil {
			return nil, err
		}
		named := len(in.ZoneName) == 0 || slices.Contains(in.ZoneName, name)
		if fits && named && (len(in.ZoneID) == 0 || slices.Contains(in.ZoneID, zone.ID)) {
			zones = append(zones, zone)
		}
	}
	return struct {
		Items []zoneXML `xml:"availabilityZoneInfo>item"`
	}{zones}, nil
}

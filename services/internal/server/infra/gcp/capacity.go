package gcp

import (
	"context"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

// fewAddresses is the largest number of free addresses with which HasRoom reports that a subnet is full. Other users of
// the subnet need addresses too.
const fewAddresses = 10

// HasRoom implements infra.SubnetCapacity. It reads the utilization from subnetworks.get. If Google reports no
// utilization for a subnet, the subnet counts as having room.
func (p *Provider) HasRoom(ctx context.Context, subnets []string) (map[string]bool, error) {
	room := make(map[string]bool, len(subnets))
	for _, name := range subnets {
		subnet, err := p.api.getSubnet(ctx, p.subnetPath(name))
		if googlecloud.StatusOf(err) == http.StatusNotFound {
			room[name] = false
			continue
		}
		if err != nil {
			return nil, p.classify("look for room in subnets", "subnetworks.get", err)
		}
		room[name] = hasRoom(subnet)
	}
	return room, nil
}

func hasRoom(subnet *compute.Subnetwork) bool {
	if subnet.UtilizationDetails != nil {
		for _, use := range subnet.UtilizationDetails.Ipv4Utilizations {
			if use.RangeName == "" && use.TotalAllocatedIp+use.TotalFreeIp > 0 {
				return use.TotalFreeIp > fewAddresses
			}
		}
	}
	return true
}

// DescribeType implements infra.InstanceTypes with machineTypes.get.
func (p *Provider) DescribeType(ctx context.Context, name string) (infra.InstanceType, error) {
	found, err := p.api.machineType(ctx, name)
	if err != nil {
		return infra.InstanceType{}, p.classify("describe machine type "+name, "machineTypes.get", err)
	}
	return infra.InstanceType{CPUs: int(found.GuestCpus), MemoryMiB: found.MemoryMb}, nil
}

// imageFields maps each filter of an image query to the field that it compares. The value of a filter may contain the
// wildcards * and ?.
var imageFields = map[string]func(*compute.Image) string{
	"architecture": func(i *compute.Image) string { return strings.ToLower(i.Architecture) },
	"family":       func(i *compute.Image) string { return i.Family },
	"name":         func(i *compute.Image) string { return i.Name },
	"status":       func(i *compute.Image) string { return i.Status },
}

// Resolve implements infra.Images with images.list. The owners in a query are projects. Resolve considers images that
// are ready and not deprecated. It returns the image's path, which a template's args can contain.
func (p *Provider) Resolve(ctx context.Context, q infra.ImageQuery) (string, error) {
	what := "look up image " + q.String()
	if len(q.Owners) == 0 {
		return "", refused(what, "owners is missing: set the projects of the image, such as debian-cloud, or self")
	}
	for name := range q.Filters {
		if _, label := strings.CutPrefix(name, "labels."); imageFields[name] == nil && !label {
			return "", refused(what, "images have no filter %q; there are %s and labels.{key}", name,
				strings.Join(slices.Sorted(maps.Keys(imageFields)), ", "))
		}
	}
	var found []infra.Image
	for _, owner := range q.Owners {
		if owner == "self" {
			owner = p.cfg.Project
		}
		images, err := p.api.images(ctx, owner)
		if err != nil {
			return "", p.classify(what, "images.list of "+owner, err)
		}
		for _, image := range images {
			if matchesQuery(image, q) {
				at, _ := time.Parse(time.RFC3339, image.CreationTimestamp) // an image without a time is the oldest
				found = append(found, infra.Image{Name: image.Name, CreatedAt: at,
					ID: "projects/" + pathPart(image.SelfLink, "projects") + "/global/images/" + image.Name})
			}
		}
	}
	return q.Choose(what, found)
}

func matchesQuery(image *compute.Image, q infra.ImageQuery) bool {
	if _, asked := q.Filters["status"]; !asked && image.Status != "READY" {
		return false
	}
	if image.Deprecated != nil && image.Deprecated.State != "" && image.Deprecated.State != "ACTIVE" {
		return false
	}
	for name, values := range q.Filters {
		have := ""
		if label, isLabel := strings.CutPrefix(name, "labels."); isLabel {
			have = image.Labels[label]
		} else {
			have = imageFields[name](image)
		}
		if !slices.ContainsFunc(values, func(pattern string) bool {
			if name == "architecture" {
				pattern = strings.ToLower(pattern)
			}
			ok, err := path.Match(pattern, have)
			return ok && err == nil
		}) {
			return false
		}
	}
	return true
}

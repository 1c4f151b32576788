package aws

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// owned lists the filters that limit who can own an image. A query needs one of these filters or a list of owners.
var owned = []string{"owner-id", "owner-alias", "image-id"}

// Resolve implements infra.Images with DescribeImages. It considers available images only, unless the query filters by
// state. Filter values may hold EC2's wildcards.
func (p *Provider) Resolve(ctx context.Context, q infra.ImageQuery) (string, error) {
	what := "look up image " + queryText(q)
	if len(q.Owners) == 0 && !slices.ContainsFunc(owned, func(name string) bool { return len(q.Filters[name]) > 0 }) {
		return "",
			refused(what,
				"owners is missing, and anyone can publish an image of any name: set owners (self, amazon, "+
					"an account's ID)")
	}
	in := &ec2.DescribeImagesInput{Owners: q.Owners, MaxResults: sdk.Int32(p.cfg.PageSize)}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		in.Filters = append(in.Filters, types.Filter{Name: sdk.String(name), Values: q.Filters[name]})
	}
	if _, filtered := q.Filters["state"]; !filtered {
		in.Filters = append(in.Filters, filter("state", string(types.ImageStateAvailable)))
	}
	var before func(a, b types.Image) int
	switch q.Sort {
	case "", "creation-date":
		// All dates are ISO 8601 in UTC, so their text order is their time order.
		before = func(a, b types.Image) int { return cmp.Compare(deref(a.CreationDate), deref(b.CreationDate)) }
	case "name":
		before = func(a, b types.Image) int { return cmp.Compare(deref(a.Name), deref(b.Name)) }
	default:
		return "", refused(what, "images cannot be sorted by %q", q.Sort)
	}
	ctx, tries := withAttempts(ctx)
	var images []types.Image
	for pages := ec2.NewDescribeImagesPaginator(p.cfg.EC2, in); pages.HasMorePages(); {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return "", classify(what, "DescribeImages", tries, err)
		}
		images = append(images, page.Images...)
	}
	if len(images) == 0 {
		return "", infra.Errorf(infra.NotFound, what, "no available image matches")
	}
	first := slices.MinFunc(images, func(a, b types.Image) int {
		order := cmp.Or(before(a, b), cmp.Compare(deref(a.ImageId), deref(b.ImageId)))
		if q.Newest {
			return -order
		}
		return order
	})
	return deref(first.ImageId), nil
}

// queryText describes a query in one line.
func queryText(q infra.ImageQuery) string {
	var parts []string
	if len(q.Owners) > 0 {
		parts = append(parts, "owned by "+strings.Join(q.Owners, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		parts = append(parts, fmt.Sprintf("%s = %s", name, strings.Join(q.Filters[name], " | ")))
	}
	return "(" + strings.Join(parts, "; ") + ")"
}

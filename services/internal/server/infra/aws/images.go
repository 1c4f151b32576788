package aws

import (
	"context"
	"maps"
	"slices"
	"time"

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
	what := "look up image " + q.String()
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
	var images []infra.Image
	pages := ec2.NewDescribeImagesPaginator(p.cfg.EC2, in)
	if err := readPages(ctx, what, "DescribeImages", pages, func(page *ec2.DescribeImagesOutput) {
		for _, image := range page.Images {
			at, _ := time.Parse(time.RFC3339, deref(image.CreationDate)) // an image without a date is the oldest
			images = append(images, infra.Image{ID: deref(image.ImageId), Name: deref(image.Name), CreatedAt: at})
		}
	}); err != nil {
		return "", err
	}
	return q.Choose(what, images)
}

package ec2

import (
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/google/go-cmp/cmp"
)

func TestDescribeImages(t *testing.T) {
	w := newTestRegion(t, nil)
	now := w.clock()
	amazon := w.service.AddImage(AMI{Name: "al2023-ami-2023.9-kernel-6.12-arm64", Owner: "amazon", Arch: "arm64",
		Created: now.Add(-time.Hour)})
	debian := w.service.AddImage(AMI{Name: "debian-13-amd64-20260101", Owner: "136693071363",
		Created: now.Add(-2 * time.Hour), Deprecated: now.Add(time.Hour)})
	w.service.AddImage(AMI{Name: "secret", Owner: "999999999999", Private: true})
	filter := func(name string, values ...string) types.Filter { return types.Filter{Name: &name, Values: values} }
	cases := map[string]struct {
		in   sdk.DescribeImagesInput
		want []string
	}{
		"own":          {sdk.DescribeImagesInput{Owners: []string{"self"}}, []string{w.amd, w.arm}},
		"amazon's":     {sdk.DescribeImagesInput{Owners: []string{"amazon"}}, []string{amazon}},
		"an account's": {sdk.DescribeImagesInput{Owners: []string{"136693071363"}}, []string{debian}},
		"by name": {sdk.DescribeImagesInput{Filters: []types.Filter{filter("name", "agent-*")}},
			[]string{w.amd, w.arm}},
		"by architecture": {sdk.DescribeImagesInput{Filters: []types.Filter{filter("architecture", "arm64")}},
			[]string{w.arm, amazon}},
		"by tag": {sdk.DescribeImagesInput{Filters: []types.Filter{filter("tag:role", "agent")}},
			[]string{w.amd}},
		"by everything": {sdk.DescribeImagesInput{Owners: []string{"self", "amazon"}, Filters: []types.Filter{
			filter("state", "available"), filter("virtualization-type", "hvm"), filter("root-device-type", "ebs"),
			filter("name", "al2023-ami-2023.*-arm64"),
		}}, []string{amazon}},
		"by ID":      {sdk.DescribeImagesInput{ImageIds: []string{debian}}, []string{debian}},
		"executable": {sdk.DescribeImagesInput{ExecutableUsers: []string{"all"}}, []string{amazon, debian}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out := must(w.client.DescribeImages(t.Context(), &tc.in))(t)
			var got []string
			for _, m := range out.Images {
				got = append(got, *m.ImageId)
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	w.sleep(time.Hour)
	if out := must(w.client.DescribeImages(t.Context(), &sdk.DescribeImagesInput{Owners: []string{"136693071363"}}))(
		t); len(out.Images) != 0 {
		t.Error("a deprecated image is listed")
	}
	if out := must(w.client.DescribeImages(t.Context(), &sdk.DescribeImagesInput{Owners: []string{"136693071363"},
		IncludeDeprecated: aws.Bool(true)}))(t); len(out.Images) != 1 || out.Images[0].DeprecationTime == nil {
		t.Error("a deprecated image is not listed on request")
	}
	w.service.SetImageState(w.amd, "deregistered")
	if _, err := w.client.DescribeImages(t.Context(), &sdk.DescribeImagesInput{ImageIds: []string{w.amd}}); code(t,
		err) != "InvalidAMIID.NotFound" {
		t.Errorf("a deregistered image: %v", err)
	}
	w.service.SetImageState(debian, "pending")
	if _, err := w.client.RunInstances(t.Context(), &sdk.RunInstancesInput{ImageId: &debian, SubnetId: &w.subnetA,
		InstanceType: "t3.micro", MinCount: aws.Int32(1), MaxCount: aws.Int32(1)}); code(t,
		err) != "InvalidAMIID.Unavailable" {
		t.Errorf("a pending image: %v", err)
	}
	if _, err := w.client.DescribeImages(t.Context(), &sdk.DescribeImagesInput{Owners: []string{"me"}}); code(t,
		err) != "InvalidUserID.Malformed" {
		t.Errorf("no owner: %v", err)
	}
	for range 7 {
		w.service.AddImage(AMI{})
	}
	count, pages := 0, sdk.NewDescribeImagesPaginator(w.client, &sdk.DescribeImagesInput{Owners: []string{"self"},
		MaxResults: aws.Int32(5)})
	for pages.HasMorePages() {
		count += len(must(pages.NextPage(t.Context()))(t).Images)
	}
	if count != 8 {
		t.Errorf("%d images in pages", count)
	}
}

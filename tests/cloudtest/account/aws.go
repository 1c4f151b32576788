package account

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	s3types "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
)

// AWS is a region of an account of AWS.
type AWS struct {
	config  aws.Config
	ec2     *ec2.Client
	scaling *autoscaling.Client
	elb     *elasticloadbalancingv2.Client
	iam     *iam.Client
	s3      *s3.Client
	secrets *secretsmanager.Client
	ssm     *ssm.Client
}

// NewAWS returns the region of the configuration. A request that AWS throttles, because other programs use the account
// too, is repeated for about two minutes: a clean-up must not give up.
func NewAWS(config aws.Config) *AWS {
	config.Retryer = func() aws.Retryer {
		return retry.NewStandard(func(o *retry.StandardOptions) {
			o.MaxAttempts, o.RateLimiter = 15, ratelimit.None
		})
	}
	return &AWS{config: config, ec2: ec2.NewFromConfig(config), scaling: autoscaling.NewFromConfig(config),
		elb: elasticloadbalancingv2.NewFromConfig(config), iam: iam.NewFromConfig(config),
		s3: s3.NewFromConfig(config, func(o *s3.Options) {
			o.UsePathStyle = config.BaseEndpoint != nil // another endpoint than that of AWS
		}),
		secrets: secretsmanager.NewFromConfig(config), ssm: ssm.NewFromConfig(config)}
}

// Identify implements [Account].
func (a *AWS) Identify(ctx context.Context) (Identity, error) {
	out, err := sts.NewFromConfig(a.config).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return Identity{}, awsError(err)
	}
	return Identity{Account: aws.ToString(out.Account), Caller: aws.ToString(out.Arn)}, nil
}

// Zone implements [Account].
func (a *AWS) Zone(ctx context.Context, region, want string, machines []string) (string, error) {
	zones, err := a.ec2.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{})
	if _, unknown := errors.AsType[*net.DNSError](err); unknown {
		return "", fmt.Errorf("there is no region %s, or this machine cannot look up the names of its endpoints: "+
			"`aws ec2 describe-regions` lists the regions: %w", region, err)
	}
	if err != nil {
		return "", fmt.Errorf("list the zones of the region %s (is it enabled for the account?): %w", region,
			awsError(err))
	}
	offers := map[string][]string{}
	pages := ec2.NewDescribeInstanceTypeOfferingsPaginator(a.ec2, &ec2.DescribeInstanceTypeOfferingsInput{
		LocationType: types.LocationTypeAvailabilityZone,
		Filters:      []types.Filter{{Name: aws.String("instance-type"), Values: machines}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return "", fmt.Errorf("list the instance types of the region %s: %w", region, awsError(err))
		}
		for _, offer := range page.InstanceTypeOfferings {
			zone := aws.ToString(offer.Location)
			offers[zone] = append(offers[zone], string(offer.InstanceType))
		}
	}
	var names []string
	for _, zone := range zones.AvailabilityZones {
		if zone.State == types.AvailabilityZoneStateAvailable && (zone.ZoneType == nil ||
			*zone.ZoneType == "availability-zone") {
			names = append(names, aws.ToString(zone.ZoneName))
		}
	}
	return choose(region, want, names, offers, machines)
}

// choose returns the first zone that offers all machine types.
func choose(region, want string, zones []string, offers map[string][]string, machines []string) (string, error) {
	slices.Sort(zones)
	if want != "" && !slices.Contains(zones, want) {
		return "", fmt.Errorf("the region %s has no zone %s: it has %s", region, want, strings.Join(zones, ", "))
	}
	lacks := map[string]bool{}
	for _, zone := range zones {
		if want != "" && zone != want {
			continue
		}
		complete := true
		for _, machine := range machines {
			if !slices.Contains(offers[zone], machine) {
				lacks[machine], complete = true, false
			}
		}
		if complete {
			return zone, nil
		}
	}
	var missing []string
	for machine := range lacks {
		missing = append(missing, machine)
	}
	slices.Sort(missing)
	if want != "" {
		return "", fmt.Errorf("the zone %s does not offer the machine types %s: choose another ZONE, or leave it out",
			want, strings.Join(missing, ", "))
	}
	return "", fmt.Errorf("no zone of the region %s offers all of the machine types %s: choose another REGION or ARCH",
		region, strings.Join(machines, ", "))
}

// Image implements [Account].
func (a *AWS) Image(ctx context.Context, cluster, role string) (string, error) {
	images, err := a.images(ctx)
	if err != nil {
		return "", err
	}
	var newest types.Image
	for _, image := range images {
		if tags := tagsOf(image.Tags); tags[Tag] == cluster && tags["nstance:image"] == role &&
			aws.ToString(image.CreationDate) > aws.ToString(newest.CreationDate) {
			newest = image
		}
	}
	if newest.ImageId == nil {
		return "", fmt.Errorf("there is no image of the role %s with the tag %s=%s", role, Tag, cluster)
	}
	return *newest.ImageId, nil
}

func (a *AWS) images(ctx context.Context) ([]types.Image, error) {
	out, err := a.ec2.DescribeImages(ctx, &ec2.DescribeImagesInput{Owners: []string{"self"}})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", awsError(err))
	}
	return out.Images, nil
}

// Workers implements [Account].
func (a *AWS) Workers(ctx context.Context, cluster string) ([]string, error) {
	return a.machines(ctx, cluster, "nstance:instance-id")
}

// Servers implements [Account].
func (a *AWS) Servers(ctx context.Context, cluster string) ([]string, error) {
	return a.machines(ctx, cluster, "nstance:server")
}

// machines returns the pending and running instances of a cluster that have a tag.
func (a *AWS) machines(ctx context.Context, cluster, tag string) (ids []string, err error) {
	pages := ec2.NewDescribeInstancesPaginator(a.ec2, &ec2.DescribeInstancesInput{Filters: []types.Filter{
		{Name: aws.String("tag:nstance:cluster"), Values: []string{cluster}},
		{Name: aws.String("tag-key"), Values: []string{tag}},
		{Name: aws.String("instance-state-name"), Values: []string{"pending", "running"}}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, fmt.Errorf("list instances: %w", awsError(err))
		}
		for _, reservation := range page.Reservations {
			for _, instance := range reservation.Instances {
				ids = append(ids, aws.ToString(instance.InstanceId))
			}
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Kill implements [Account].
func (a *AWS) Kill(ctx context.Context, id string) error {
	_, err := a.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{id}})
	return awsError(err)
}

// awsKind lists the resources of one kind.
type awsKind struct {
	name string
	list func(ctx context.Context, in scope) ([]Resource, error)
}

// scope is what an inventory looks for.
type scope struct {
	cluster string
	vpcs    []string // the cluster's VPCs: everything in them is the cluster's
}

func (s scope) has(name string, tags []types.Tag, vpc *string) bool {
	return belongs(s.cluster, name, tagsOf(tags)) || vpc != nil && slices.Contains(s.vpcs, *vpc)
}

func tagsOf(tags []types.Tag) map[string]string {
	all := map[string]string{}
	for _, tag := range tags {
		all[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return all
}

// Kinds implements [Account].
func (a *AWS) Kinds() (names []string) {
	for _, kind := range a.kinds() {
		names = append(names, kind.name)
	}
	return names
}

// Inventory implements [Account]. It asks each service itself: the Resource Groups Tagging API lacks kinds and lags.
func (a *AWS) Inventory(ctx context.Context, cluster string) (found []Resource, err error) {
	in := scope{cluster: cluster}
	vpcs, err := a.ec2.DescribeVpcs(ctx, &ec2.DescribeVpcsInput{})
	if err != nil {
		return nil, fmt.Errorf("list VPCs: %w", awsError(err))
	}
	for _, vpc := range vpcs.Vpcs {
		if belongs(cluster, "", tagsOf(vpc.Tags)) {
			in.vpcs = append(in.vpcs, aws.ToString(vpc.VpcId))
		}
	}
	for _, kind := range a.kinds() {
		resources, err := kind.list(ctx, in)
		if err != nil {
			return nil, fmt.Errorf("list resources of the kind %s: %w", kind.name, awsError(err))
		}
		for _, r := range resources {
			r.Kind = kind.name
			remove := r.remove
			r.remove = func(ctx context.Context) error { return awsError(remove(ctx)) }
			found = append(found, r)
		}
	}
	return found, nil
}

// kinds returns the kinds that the example and Packer make, in the order in which they are deleted.
func (a *AWS) kinds() []awsKind {
	return []awsKind{
		{"auto scaling group", a.groups}, {"instance", a.instances}, {"load balancer", a.balancers},
		{"target group", a.targets}, {"endpoint", a.endpoints}, {"NAT gateway", a.nats},
		{"network interface", a.interfaces}, {"address", a.addresses}, {"launch template", a.templates},
		{"internet gateway", a.gateways}, {"egress-only internet gateway", a.egressGateways}, {"subnet", a.subnets},
		{"route table", a.routeTables}, {"security group", a.securityGroups}, {"vpc", a.vpcs}, {"volume", a.volumes},
		{"image", a.ownImages}, {"snapshot", a.snapshots}, {"key pair", a.keyPairs},
		{"instance profile", a.profiles}, {"role", a.roles}, {"bucket", a.buckets}, {"secret", a.secretsOf},
		{"parameter", a.parameters},
	}
}

// awsError marks the errors of AWS that a repetition does not change.
func awsError(err error) error {
	code := ""
	if answer, ok := errors.AsType[smithy.APIError](err); ok {
		code = answer.ErrorCode()
	}
	switch code {
	case "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthFailure", "InvalidClientTokenId",
		"ExpiredToken", "ExpiredTokenException", "UnrecognizedClientException", "SignatureDoesNotMatch":
		return &RefusedError{err}
	}
	return err
}

// page collects the resources of all pages of a list.
func page[P any](ctx context.Context, more func() bool, next func(context.Context) (P, error),
	each func(P) []Resource) (found []Resource, err error) {
	for more() {
		one, err := next(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, each(one)...)
	}
	return found, nil
}

// made returns a resource. call is the API call that deletes it.
func made[I, O, F any](id *string, call func(context.Context, *I, ...func(*F)) (*O, error), input *I) Resource {
	return Resource{ID: aws.ToString(id), remove: func(ctx context.Context) error {
		_, err := call(ctx, input)
		return err
	}}
}

func (a *AWS) groups(ctx context.Context, in scope) ([]Resource, error) {
	pages := autoscaling.NewDescribeAutoScalingGroupsPaginator(a.scaling, nil)
	next := func(ctx context.Context) (*autoscaling.DescribeAutoScalingGroupsOutput, error) {
		return pages.NextPage(ctx)
	}
	each := func(out *autoscaling.DescribeAutoScalingGroupsOutput) (found []Resource) {
		for _, v := range out.AutoScalingGroups {
			if belongs(in.cluster, aws.ToString(v.AutoScalingGroupName), nil) {
				found = append(found, made(v.AutoScalingGroupName, a.scaling.DeleteAutoScalingGroup,
					&autoscaling.DeleteAutoScalingGroupInput{AutoScalingGroupName: v.AutoScalingGroupName,
						ForceDelete: aws.Bool(true)}))
			}
		}
		return found
	}
	return page(ctx, pages.HasMorePages, next, each)
}

func (a *AWS) instances(ctx context.Context, in scope) ([]Resource, error) {
	pages := ec2.NewDescribeInstancesPaginator(a.ec2, &ec2.DescribeInstancesInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*ec2.DescribeInstancesOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *ec2.DescribeInstancesOutput) (found []Resource) {
		for _, reservation := range out.Reservations {
			for _, v := range reservation.Instances {
				if v.State.Name != types.InstanceStateNameTerminated && in.has("", v.Tags, v.VpcId) {
					found = append(found, made(v.InstanceId, a.ec2.TerminateInstances,
						&ec2.TerminateInstancesInput{InstanceIds: []string{aws.ToString(v.InstanceId)}}))
				}
			}
		}
		return found
	})
}

func (a *AWS) balancers(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.elb.DescribeLoadBalancers(ctx, &elasticloadbalancingv2.DescribeLoadBalancersInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.LoadBalancers {
		if in.has(aws.ToString(v.LoadBalancerName), nil, v.VpcId) {
			found = append(found, made(v.LoadBalancerArn, a.elb.DeleteLoadBalancer,
				&elasticloadbalancingv2.DeleteLoadBalancerInput{LoadBalancerArn: v.LoadBalancerArn}))
		}
	}
	return found, nil
}

func (a *AWS) targets(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.elb.DescribeTargetGroups(ctx, &elasticloadbalancingv2.DescribeTargetGroupsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.TargetGroups {
		if in.has(aws.ToString(v.TargetGroupName), nil, v.VpcId) {
			found = append(found, made(v.TargetGroupArn, a.elb.DeleteTargetGroup,
				&elasticloadbalancingv2.DeleteTargetGroupInput{TargetGroupArn: v.TargetGroupArn}))
		}
	}
	return found, nil
}

func (a *AWS) endpoints(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeVpcEndpoints(ctx, &ec2.DescribeVpcEndpointsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.VpcEndpoints {
		if in.has("", v.Tags, v.VpcId) {
			found = append(found, made(v.VpcEndpointId, a.ec2.DeleteVpcEndpoints,
				&ec2.DeleteVpcEndpointsInput{VpcEndpointIds: []string{aws.ToString(v.VpcEndpointId)}}))
		}
	}
	return found, nil
}

func (a *AWS) nats(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeNatGateways(ctx, &ec2.DescribeNatGatewaysInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.NatGateways {
		if v.State != types.NatGatewayStateDeleted && in.has("", v.Tags, v.VpcId) {
			found = append(found, made(v.NatGatewayId, a.ec2.DeleteNatGateway,
				&ec2.DeleteNatGatewayInput{NatGatewayId: v.NatGatewayId}))
		}
	}
	return found, nil
}

func (a *AWS) interfaces(ctx context.Context, in scope) ([]Resource, error) {
	pages := ec2.NewDescribeNetworkInterfacesPaginator(a.ec2, &ec2.DescribeNetworkInterfacesInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*ec2.DescribeNetworkInterfacesOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *ec2.DescribeNetworkInterfacesOutput) (found []Resource) {
		for _, v := range out.NetworkInterfaces {
			if in.has("", v.TagSet, v.VpcId) {
				found = append(found, made(v.NetworkInterfaceId, a.ec2.DeleteNetworkInterface,
					&ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: v.NetworkInterfaceId}))
			}
		}
		return found
	})
}

func (a *AWS) addresses(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeAddresses(ctx, &ec2.DescribeAddressesInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.Addresses {
		if in.has("", v.Tags, nil) {
			found = append(found, made(v.AllocationId, a.ec2.ReleaseAddress,
				&ec2.ReleaseAddressInput{AllocationId: v.AllocationId}))
		}
	}
	return found, nil
}

func (a *AWS) templates(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeLaunchTemplates(ctx, &ec2.DescribeLaunchTemplatesInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.LaunchTemplates {
		if in.has(aws.ToString(v.LaunchTemplateName), v.Tags, nil) {
			found = append(found, made(v.LaunchTemplateId, a.ec2.DeleteLaunchTemplate,
				&ec2.DeleteLaunchTemplateInput{LaunchTemplateId: v.LaunchTemplateId}))
		}
	}
	return found, nil
}

func (a *AWS) gateways(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeInternetGateways(ctx, &ec2.DescribeInternetGatewaysInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.InternetGateways {
		if !in.has("", v.Tags, nil) {
			continue
		}
		found = append(found, Resource{ID: aws.ToString(v.InternetGatewayId), remove: func(ctx context.Context) error {
			for _, attachment := range v.Attachments {
				if _, err := a.ec2.DetachInternetGateway(ctx, &ec2.DetachInternetGatewayInput{
					InternetGatewayId: v.InternetGatewayId, VpcId: attachment.VpcId}); err != nil {
					return err
				}
			}
			_, err := a.ec2.DeleteInternetGateway(ctx, &ec2.DeleteInternetGatewayInput{
				InternetGatewayId: v.InternetGatewayId})
			return err
		}})
	}
	return found, nil
}

func (a *AWS) egressGateways(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeEgressOnlyInternetGateways(ctx, &ec2.DescribeEgressOnlyInternetGatewaysInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.EgressOnlyInternetGateways {
		if in.has("", v.Tags, nil) {
			found = append(found, made(v.EgressOnlyInternetGatewayId, a.ec2.DeleteEgressOnlyInternetGateway,
				&ec2.DeleteEgressOnlyInternetGatewayInput{EgressOnlyInternetGatewayId: v.EgressOnlyInternetGatewayId}))
		}
	}
	return found, nil
}

func (a *AWS) subnets(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.Subnets {
		if in.has("", v.Tags, v.VpcId) {
			found = append(found, made(v.SubnetId, a.ec2.DeleteSubnet, &ec2.DeleteSubnetInput{SubnetId: v.SubnetId}))
		}
	}
	return found, nil
}

func (a *AWS) routeTables(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeRouteTables(ctx, &ec2.DescribeRouteTablesInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.RouteTables {
		main := slices.ContainsFunc(v.Associations, func(a types.RouteTableAssociation) bool {
			return aws.ToBool(a.Main)
		})
		if in.has("", v.Tags, v.VpcId) && (!main || in.cluster == "") { // the main one is deleted with the VPC
			found = append(found, made(v.RouteTableId, a.ec2.DeleteRouteTable,
				&ec2.DeleteRouteTableInput{RouteTableId: v.RouteTableId}))
		}
	}
	return found, nil
}

func (a *AWS) securityGroups(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.SecurityGroups {
		if !in.has("", v.Tags, v.VpcId) || aws.ToString(v.GroupName) == "default" && in.cluster != "" {
			continue // the default group is deleted with the VPC
		}
		found = append(found, Resource{ID: aws.ToString(v.GroupId), remove: func(ctx context.Context) error {
			// A group cannot be deleted while a rule of another group names it.
			if len(v.IpPermissions) > 0 {
				if _, err := a.ec2.RevokeSecurityGroupIngress(ctx, &ec2.RevokeSecurityGroupIngressInput{
					GroupId: v.GroupId, IpPermissions: v.IpPermissions}); err != nil {
					return err
				}
			}
			if len(v.IpPermissionsEgress) > 0 {
				if _, err := a.ec2.RevokeSecurityGroupEgress(ctx, &ec2.RevokeSecurityGroupEgressInput{
					GroupId: v.GroupId, IpPermissions: v.IpPermissionsEgress}); err != nil {
					return err
				}
			}
			_, err := a.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: v.GroupId})
			return err
		}})
	}
	return found, nil
}

func (a *AWS) vpcs(_ context.Context, in scope) (found []Resource, err error) {
	for _, id := range in.vpcs {
		found = append(found, made(&id, a.ec2.DeleteVpc, &ec2.DeleteVpcInput{VpcId: &id}))
	}
	return found, nil
}

func (a *AWS) volumes(ctx context.Context, in scope) ([]Resource, error) {
	pages := ec2.NewDescribeVolumesPaginator(a.ec2, &ec2.DescribeVolumesInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*ec2.DescribeVolumesOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *ec2.DescribeVolumesOutput) (found []Resource) {
		for _, v := range out.Volumes {
			if in.has("", v.Tags, nil) {
				found = append(found, made(v.VolumeId, a.ec2.DeleteVolume,
					&ec2.DeleteVolumeInput{VolumeId: v.VolumeId}))
			}
		}
		return found
	})
}

func (a *AWS) ownImages(ctx context.Context, in scope) (found []Resource, err error) {
	images, err := a.images(ctx)
	if err != nil {
		return nil, err
	}
	for _, v := range images {
		if in.has("", v.Tags, nil) {
			found = append(found, made(v.ImageId, a.ec2.DeregisterImage, &ec2.DeregisterImageInput{ImageId: v.ImageId}))
		}
	}
	return found, nil
}

func (a *AWS) snapshots(ctx context.Context, in scope) ([]Resource, error) {
	pages := ec2.NewDescribeSnapshotsPaginator(a.ec2, &ec2.DescribeSnapshotsInput{OwnerIds: []string{"self"}})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*ec2.DescribeSnapshotsOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *ec2.DescribeSnapshotsOutput) (found []Resource) {
		for _, v := range out.Snapshots {
			if in.has("", v.Tags, nil) {
				found = append(found, made(v.SnapshotId, a.ec2.DeleteSnapshot,
					&ec2.DeleteSnapshotInput{SnapshotId: v.SnapshotId}))
			}
		}
		return found
	})
}

func (a *AWS) keyPairs(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.ec2.DescribeKeyPairs(ctx, &ec2.DescribeKeyPairsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.KeyPairs {
		if in.has("", v.Tags, nil) {
			found = append(found, made(v.KeyPairId, a.ec2.DeleteKeyPair,
				&ec2.DeleteKeyPairInput{KeyPairId: v.KeyPairId}))
		}
	}
	return found, nil
}

func (a *AWS) profiles(ctx context.Context, in scope) ([]Resource, error) {
	pages := iam.NewListInstanceProfilesPaginator(a.iam, &iam.ListInstanceProfilesInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*iam.ListInstanceProfilesOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *iam.ListInstanceProfilesOutput) (found []Resource) {
		for _, v := range out.InstanceProfiles {
			name := aws.ToString(v.InstanceProfileName)
			if !belongs(in.cluster, name, nil) {
				continue
			}
			found = append(found, Resource{ID: name, remove: func(ctx context.Context) error {
				for _, role := range v.Roles {
					if _, err := a.iam.RemoveRoleFromInstanceProfile(ctx, &iam.RemoveRoleFromInstanceProfileInput{
						InstanceProfileName: v.InstanceProfileName, RoleName: role.RoleName}); err != nil {
						return err
					}
				}
				_, err := a.iam.DeleteInstanceProfile(ctx, &iam.DeleteInstanceProfileInput{
					InstanceProfileName: v.InstanceProfileName})
				return err
			}})
		}
		return found
	})
}

func (a *AWS) roles(ctx context.Context, in scope) ([]Resource, error) {
	pages := iam.NewListRolesPaginator(a.iam, &iam.ListRolesInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*iam.ListRolesOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *iam.ListRolesOutput) (found []Resource) {
		for _, v := range out.Roles {
			if belongs(in.cluster, aws.ToString(v.RoleName), nil) &&
				!strings.HasPrefix(aws.ToString(v.Path), "/aws-service-role/") {
				found = append(found, Resource{ID: aws.ToString(v.RoleName), remove: func(ctx context.Context) error {
					return a.deleteRole(ctx, v.RoleName)
				}})
			}
		}
		return found
	})
}

func (a *AWS) deleteRole(ctx context.Context, name *string) error {
	policies, err := a.iam.ListRolePolicies(ctx, &iam.ListRolePoliciesInput{RoleName: name})
	if err != nil {
		return err
	}
	for _, policy := range policies.PolicyNames {
		if _, err := a.iam.DeleteRolePolicy(ctx, &iam.DeleteRolePolicyInput{RoleName: name,
			PolicyName: &policy}); err != nil {
			return err
		}
	}
	_, err = a.iam.DeleteRole(ctx, &iam.DeleteRoleInput{RoleName: name})
	return err
}

func (a *AWS) buckets(ctx context.Context, in scope) (found []Resource, err error) {
	out, err := a.s3.ListBuckets(ctx, &s3.ListBucketsInput{})
	if err != nil {
		return nil, err
	}
	for _, v := range out.Buckets {
		if belongs(in.cluster, aws.ToString(v.Name), nil) {
			found = append(found, Resource{ID: aws.ToString(v.Name), remove: func(ctx context.Context) error {
				return a.deleteBucket(ctx, v.Name)
			}})
		}
	}
	return found, nil
}

// deleteBucket deletes a bucket with all versions of its objects.
func (a *AWS) deleteBucket(ctx context.Context, bucket *string) error {
	pages := s3.NewListObjectVersionsPaginator(a.s3, &s3.ListObjectVersionsInput{Bucket: bucket})
	for pages.HasMorePages() {
		out, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		var all []s3types.ObjectIdentifier
		for _, v := range out.Versions {
			all = append(all, s3types.ObjectIdentifier{Key: v.Key, VersionId: v.VersionId})
		}
		for _, v := range out.DeleteMarkers {
			all = append(all, s3types.ObjectIdentifier{Key: v.Key, VersionId: v.VersionId})
		}
		if len(all) == 0 {
			continue
		}
		if _, err := a.s3.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: bucket,
			Delete: &s3types.Delete{Objects: all, Quiet: aws.Bool(true)}}); err != nil {
			return err
		}
	}
	_, err := a.s3.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: bucket})
	return err
}

func (a *AWS) secretsOf(ctx context.Context, in scope) ([]Resource, error) {
	pages := secretsmanager.NewListSecretsPaginator(a.secrets, &secretsmanager.ListSecretsInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*secretsmanager.ListSecretsOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *secretsmanager.ListSecretsOutput) (found []Resource) {
		for _, v := range out.SecretList {
			if belongs(in.cluster, strings.TrimPrefix(strings.ReplaceAll(aws.ToString(v.Name), "/", "-"), "nstance-"),
				nil) {
				found = append(found, made(v.Name, a.secrets.DeleteSecret, &secretsmanager.DeleteSecretInput{
					SecretId: v.ARN, ForceDeleteWithoutRecovery: aws.Bool(true)}))
			}
		}
		return found
	})
}

func (a *AWS) parameters(ctx context.Context, in scope) ([]Resource, error) {
	pages := ssm.NewDescribeParametersPaginator(a.ssm, &ssm.DescribeParametersInput{})
	return page(ctx, pages.HasMorePages, func(ctx context.Context) (*ssm.DescribeParametersOutput, error) {
		return pages.NextPage(ctx)
	}, func(out *ssm.DescribeParametersOutput) (found []Resource) {
		for _, v := range out.Parameters {
			if in.cluster == "" || strings.HasPrefix(aws.ToString(v.Name), "/nstance/"+in.cluster+"/") {
				found = append(found, made(v.Name, a.ssm.DeleteParameter, &ssm.DeleteParameterInput{Name: v.Name}))
			}
		}
		return found
	})
}

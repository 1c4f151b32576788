package aws_test

import (
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/tests/modules"
)

// TestPolicyPermitsEveryPurchase creates a VM in every purchase form, with the role that the Terraform module "account"
// makes. A request must have every tag and option that the server sends, and the policy must permit all of them.
func TestPolicyPermitsEveryPurchase(t *testing.T) {
	const (
		reservation = "cr-0123456789abcdef0"
		group       = "arn:aws:resource-groups:us-west-2:123456789012:group/reserved"
		host        = "arn:aws:ec2:us-west-2:123456789012:dedicated-host/h-0123456789abcdef0"
	)
	target := func(key, value string) map[string]any {
		return map[string]any{"CapacityReservationTarget": map[string]any{key: value}}
	}
	for name, form := range map[string]struct {
		spot      bool
		args      map[string]any
		startWith []string
		refused   bool // without startWith
	}{
		"on demand":         {},
		"spot, by purchase": {spot: true},
		"spot, by args":     {args: map[string]any{"InstanceMarketOptions": map[string]any{"MarketType": "spot"}}},
		"reserved capacity": {args: map[string]any{
			"CapacityReservationSpecification": target("CapacityReservationId", reservation)}},
		"only reserved capacity": {args: map[string]any{"CapacityReservationSpecification": map[string]any{
			"CapacityReservationPreference": "capacity-reservations-only"}}},
		"group of reservations": {args: map[string]any{
			"CapacityReservationSpecification": target("CapacityReservationResourceGroupArn", group)},
			startWith: []string{group}, refused: true},
		"capacity block": {args: map[string]any{
			"CapacityReservationSpecification": target("CapacityReservationId", reservation),
			"InstanceMarketOptions":            map[string]any{"MarketType": "capacity-block"}}},
		"dedicated instance": {args: map[string]any{"Placement": map[string]any{"Tenancy": "dedicated"}}},
		"dedicated host": {args: map[string]any{"Placement": map[string]any{"Tenancy": "host"}},
			startWith: []string{host}, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			create := func(startWith ...string) error {
				r := newTestCloud(t)
				p := r.open(r.strict(startWith...))
				req := r.request()
				req.Tags.Owner = infra.Owner{Cluster: modules.Cluster, Shard: modules.Shard}
				req.Tags.Spot = form.spot
				req.Args["SecurityGroupIds"] = []any{r.securityGroup(modules.Cluster)}
				for key, value := range form.args {
					req.Args[key] = value
				}
				_, err := p.Create(t.Context(), req)
				return err
			}
			if err := create(form.startWith...); err != nil {
				t.Error(err)
			}
			if form.refused {
				wantClass(t, "not in launch_resource_arns", create(), infra.Denied, "RunInstances")
			}
		})
	}
}

// strict makes a role with the servers' policy of the Terraform module. The returned function gives a provider the
// credentials of a server with this role.
func (r *testCloud) strict(startWith ...string) func(*aws.Config) {
	r.t.Helper()
	document, err := modules.StrictServerPolicy(r.vpc, startWith...)
	if err != nil {
		r.t.Fatal(err)
	}
	const name = "strict"
	r.grant(name, document)
	clients := r.sdk()
	clients.Credentials = credentials.NewStaticCredentialsProvider(r.cloud.RoleCredentials(name, "i-0123456789abcdef0"))
	return func(cfg *aws.Config) { cfg.EC2 = ec2.NewFromConfig(clients) }
}

// securityGroup makes a security group with the tag of a cluster.
func (r *testCloud) securityGroup(cluster string) string {
	r.t.Helper()
	out, err := r.root.CreateSecurityGroup(r.t.Context(), &ec2.CreateSecurityGroupInput{VpcId: &r.vpc,
		GroupName: sdk.String("vms"), Description: sdk.String("VMs"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroup,
			Tags: []types.Tag{{Key: sdk.String("nstance:cluster"), Value: &cluster}}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return *out.GroupId
}

package aws

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	elbv2 "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/smithy-go/logging"
	"github.com/aws/smithy-go/middleware"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// EC2 lists the methods of Amazon EC2 that the provider uses.
type EC2 interface {
	RunInstances(context.Context, *ec2.RunInstancesInput, ...func(*ec2.Options)) (*ec2.RunInstancesOutput, error)
	StartInstances(context.Context, *ec2.StartInstancesInput, ...func(*ec2.Options)) (
		*ec2.StartInstancesOutput, error)
	StopInstances(context.Context, *ec2.StopInstancesInput, ...func(*ec2.Options)) (*ec2.StopInstancesOutput, error)
	TerminateInstances(context.Context, *ec2.TerminateInstancesInput, ...func(*ec2.Options)) (
		*ec2.TerminateInstancesOutput, error)
	AttachNetworkInterface(context.Context, *ec2.AttachNetworkInterfaceInput,
		...func(*ec2.Options)) (*ec2.AttachNetworkInterfaceOutput, error)
	DetachNetworkInterface(context.Context, *ec2.DetachNetworkInterfaceInput,
		...func(*ec2.Options)) (*ec2.DetachNetworkInterfaceOutput, error)
	GetConsoleOutput(context.Context, *ec2.GetConsoleOutputInput, ...func(*ec2.Options)) (
		*ec2.GetConsoleOutputOutput, error)
	ec2.DescribeImagesAPIClient
	ec2.DescribeInstancesAPIClient
	ec2.DescribeInstanceTypesAPIClient
	ec2.DescribeNetworkInterfacesAPIClient
	ec2.DescribeSubnetsAPIClient
}

// ELB lists the methods of Elastic Load Balancing that the provider uses.
type ELB interface {
	RegisterTargets(context.Context, *elbv2.RegisterTargetsInput, ...func(*elbv2.Options)) (
		*elbv2.RegisterTargetsOutput, error)
	DeregisterTargets(context.Context, *elbv2.DeregisterTargetsInput, ...func(*elbv2.Options)) (
		*elbv2.DeregisterTargetsOutput, error)
	DescribeTargetGroupAttributes(context.Context, *elbv2.DescribeTargetGroupAttributesInput,
		...func(*elbv2.Options)) (*elbv2.DescribeTargetGroupAttributesOutput, error)
	DescribeTargetHealth(context.Context, *elbv2.DescribeTargetHealthInput, ...func(*elbv2.Options)) (
		*elbv2.DescribeTargetHealthOutput, error)
}

// AutoScaling lists the methods of Amazon EC2 Auto Scaling by which a server reports its health to its Auto Scaling
// group.
type AutoScaling interface {
	CompleteLifecycleAction(context.Context, *autoscaling.CompleteLifecycleActionInput,
		...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
	SetInstanceHealth(context.Context, *autoscaling.SetInstanceHealthInput,
		...func(*autoscaling.Options)) (*autoscaling.SetInstanceHealthOutput, error)
}

// Call is one AWS API call that the provider makes.
type Call struct {
	Service string   // name in IAM policies: ec2, elasticloadbalancing, autoscaling
	Name    string   // of the API action
	Actions []string // the IAM actions that the call needs
	When    string   // when the provider makes the call, in words
}

// Calls lists all AWS API calls that the provider makes, with the IAM actions that the server's role needs for each.
//
// Sources: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html,
// list_awselasticloadbalancingv2.html and list_amazonec2autoscaling.html.
var Calls = []Call{
	{"ec2", "RunInstances", []string{"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole",
		"iam:CreateServiceLinkedRole"},
		"an instance is made (iam:PassRole where args name an instance profile; iam:CreateServiceLinkedRole for the " +
			"account's first spot instance)"},
	{"ec2", "StopInstances", []string{"ec2:StopInstances"}, "a spare is put to sleep"},
	{"ec2", "StartInstances", []string{"ec2:StartInstances"}, "a spare is woken"},
	{"ec2", "TerminateInstances", []string{"ec2:TerminateInstances"}, "an instance is deleted"},
	{"ec2", "DescribeInstances", []string{"ec2:DescribeInstances"},
		"instances are listed and looked up; a machine's free device index; a lock holder's state"},
	{"ec2", "DescribeSubnets", []string{"ec2:DescribeSubnets"},
		"subnets are checked at start and on change; their room, every collection interval"},
	{"ec2", "DescribeImages", []string{"ec2:DescribeImages"}, "images are looked up"},
	{"ec2", "DescribeInstanceTypes", []string{"ec2:DescribeInstanceTypes"},
		"an operator asks for the size of an instance type; types of spares that are suspended are checked"},
	{"ec2", "GetConsoleOutput", []string{"ec2:GetConsoleOutput"}, "an operator reads the console of an instance"},
	{"ec2", "DescribeNetworkInterfaces", []string{"ec2:DescribeNetworkInterfaces"},
		"the leader's address is taken, checked and given up"},
	{"ec2", "AttachNetworkInterface", []string{"ec2:AttachNetworkInterface"}, "the leader's address is taken"},
	{"ec2", "DetachNetworkInterface", []string{"ec2:DetachNetworkInterface"},
		"the leader's address is taken from its holder, or given up"},
	{"elasticloadbalancing", "RegisterTargets", []string{"elasticloadbalancing:RegisterTargets"},
		"an instance becomes healthy"},
	{"elasticloadbalancing", "DeregisterTargets", []string{"elasticloadbalancing:DeregisterTargets"},
		"an instance is drained or gone"},
	{"elasticloadbalancing", "DescribeTargetGroupAttributes",
		[]string{"elasticloadbalancing:DescribeTargetGroupAttributes"},
		"an instance is drained: how long a target group lets it finish its requests"},
	{"elasticloadbalancing", "DescribeTargetHealth", []string{"elasticloadbalancing:DescribeTargetHealth"},
		"a template has load_balancer_health, or instances of a former group are drained"},
	{"autoscaling", "CompleteLifecycleAction", []string{"autoscaling:CompleteLifecycleAction"},
		"a new server is ready, or does not become ready in time"},
	{"autoscaling", "SetInstanceHealth", []string{"autoscaling:SetInstanceHealth"},
		"a server stays unhealthy, so that its machine is replaced"},
}

// Limits of the HTTP requests of a call. The caller's context bounds the whole call, including all attempts.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 20 * time.Second // RunInstances sometimes takes several seconds
	maxAttempts   = 3                // the caller also retries, and has more information
	maxBackoff    = 2 * time.Second
	// connections is the maximum number of idle connections that are kept open to an endpoint. If it were smaller, a
	// burst of creates would need many handshakes.
	connections = 256
)

// SDK loads the AWS SDK's configuration for the provider. It uses the SDK's default credential chain, endpoints from
// AWS_ENDPOINT_URL and related variables, adaptive retries, and the shard's region. If the function throttled is not
// nil, SDK makes the clients call it with the API action of each throttled attempt. SDK sends only the requests that
// the credential chain needs.
func SDK(ctx context.Context, provider config.Provider, throttled func(call string)) (sdk.Config, error) {
	if throttled == nil {
		throttled = func(string) {}
	}
	client := awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = dialTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost, t.MaxIdleConns = connections, 2*connections
			t.ResponseHeaderTimeout = answerTimeout
		})
	access := cloud.Access{Region: provider.Region, Profile: provider.Options[contract.OptionProfile]}
	return awscloud.Load(ctx, access, awsconfig.WithHTTPClient(client), awsconfig.WithLogger(logging.Nop{}),
		awsconfig.WithRetryer(func() sdk.Retryer { return adaptive() }),
		awsconfig.WithAPIOptions([]func(*middleware.Stack) error{watch(throttled)}))
}

// adaptive makes a retryer that slows down after throttling. It decides by the given functions first which calls it
// repeats.
func adaptive(retryables ...retry.IsErrorRetryable) sdk.Retryer {
	return limited{retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
		o.StandardOptions = append(o.StandardOptions, func(s *retry.StandardOptions) {
			s.MaxAttempts, s.MaxBackoff = maxAttempts, maxBackoff
			s.Retryables = slices.Insert(s.Retryables, 0, retryables...)
		})
	})}
}

// creating makes the retryer for RunInstances. It does not repeat throttled calls: the caller decides which create
// comes next, and how fast.
func creating() sdk.Retryer {
	return retry.NewStandard(func(s *retry.StandardOptions) {
		s.MaxAttempts, s.MaxBackoff = maxAttempts, maxBackoff
		throttled := retry.IsErrorRetryableFunc(func(err error) sdk.Ternary {
			if classOf(awscloud.CodeOf(err), awscloud.StatusOf(err)) == infra.Throttled {
				return sdk.FalseTernary
			}
			return sdk.UnknownTernary
		})
		s.Retryables = slices.Insert(s.Retryables, 0, retry.IsErrorRetryable(throttled), hopeless)
	})
}

// hopeless stops the SDK from repeating a call that AWS refused for lack of capacity or with a conflict. AWS sends such
// refusals as server errors, which the SDK would repeat. The caller must instead try another type or subnet
// immediately.
var hopeless retry.IsErrorRetryable = retry.IsErrorRetryableFunc(func(err error) sdk.Ternary {
	switch classOf(awscloud.CodeOf(err), awscloud.StatusOf(err)) {
	case infra.Capacity, infra.Conflict:
		return sdk.FalseTernary
	default:
		return sdk.UnknownTernary
	}
})

// rates are options for the calls that EC2 throttles separately. Each has a retryer of its own, which slows down only
// its own calls. So throttled creates do not slow down look-ups, which have the client's retryer.
type rates struct{ creating, stopping, starting, changing func(*ec2.Options) }

func newRates() rates {
	with := func(r sdk.Retryer) func(*ec2.Options) { return func(o *ec2.Options) { o.Retryer = r } }
	return rates{creating: with(creating()), stopping: with(adaptive()), starting: with(adaptive(hopeless)),
		changing: with(adaptive())}
}

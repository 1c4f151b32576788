package ec2

import (
	"maps"
	"net/http"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Instance states as the API names them. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html
const (
	statePending      = "pending"
	stateRunning      = "running"
	stateShuttingDown = "shutting-down"
	stateTerminated   = "terminated"
	stateStopping     = "stopping"
	stateStopped      = "stopped"
)

var stateCodes = map[string]int{statePending: 0, stateRunning: 16, stateShuttingDown: 32, stateTerminated: 48,
	stateStopping: 64, stateStopped: 80}

const (
	// terminatedVisible is how long a terminated instance is still described: "usually about one hour".
	terminatedVisible = time.Hour
	// tokenValid is how long a client token is remembered after its instances' end: "at least 24 hours".
	tokenValid = 24 * time.Hour
)

// Profile is an instance profile as IAM knows it.
type Profile struct {
	ARN, ID, Name string
	RoleName      string // "" for a profile without a role
	RoleARN       string
}

// Credentials are what the metadata service gives an instance's role.
type Credentials struct {
	Access, Secret, Token string
	Expires               time.Time
}

// Identity is what the VM half asks IAM for. Its methods are called with the cloud's lock held.
type Identity interface {
	// InstanceProfile finds a profile by name or ARN.
	InstanceProfile(nameOrARN string) (Profile, bool)
	// RoleCredentials makes credentials of a role for a session; the session is the instance's ID.
	RoleCredentials(role, session string) Credentials
}

// machinery is the state of the VM half.
type machinery struct {
	instances    map[string]*instance
	reservations map[string]*reservation
	tokens       map[tokenKey]*reservation
	images       map[string]*image
	templates    map[string]*template
	volumes      map[string]*volume
	spotRequests map[string]*spotRequest
	types        map[string]*instanceType
	identity     Identity
	bootTime     time.Duration
	stopTime     time.Duration
	vcpuLimit    int             // of all running on-demand instances; 0: none
	spotLimit    int             // spot instances; 0: none
	withoutType  map[string]bool // "type zone" pairs that are not offered
}

func newMachinery() machinery {
	return machinery{
		instances: map[string]*instance{}, reservations: map[string]*reservation{}, tokens: map[tokenKey]*reservation{},
		images:    map[string]*image{},
		templates: map[string]*template{}, volumes: map[string]*volume{},
		spotRequests: map[string]*spotRequest{},
		types:        instanceTypes(), withoutType: map[string]bool{},
	}
}

// SetIdentity connects IAM. Without it any instance profile exists and has a role of its name.
func (s *Service) SetIdentity(i Identity) { s.identity = i }

// SetTimes says how long an instance without a machine stays pending, and any stays shutting-down or stopping at least.
// They are zero: a state is left by the next look at it.
func (s *Service) SetTimes(boot, stop time.Duration) { s.bootTime, s.stopTime = boot, stop }

// machineOperations are the handlers of the VM half. Before each, what is due by the clock happens.
func (s *Service) machineOperations() map[string]wire.Handler {
	all := map[string]wire.Handler{
		"RunInstances":                   s.runInstances,
		"TerminateInstances":             s.terminateInstances,
		"DescribeInstances":              s.describeInstances,
		"GetInstanceUefiData":            s.getInstanceUefiData,
		"DescribeImages":                 s.describeImages,
		"CreateLaunchTemplate":           s.createLaunchTemplate,
		"CreateLaunchTemplateVersion":    s.createLaunchTemplateVersion,
		"ModifyLaunchTemplate":           s.modifyLaunchTemplate,
		"DeleteLaunchTemplate":           s.deleteLaunchTemplate,
		"DescribeLaunchTemplates":        s.describeLaunchTemplates,
		"DescribeLaunchTemplateVersions": s.describeLaunchTemplateVersions,
	}
	for action, handler := range all {
		all[action] = func(c *wire.Call) (any, error) {
			s.settle()
			return handler(c)
		}
	}
	return all
}

// machineKinds are the resources of the VM half.
func (s *Service) machineKinds() []kind {
	return []kind{
		{prefix: "i", name: "instance", noun: "instance ID", code: "InvalidInstanceID.NotFound",
			find: finder(s.instances), context: s.instanceContext},
		{prefix: "r", name: "reservation", noun: "reservation ID", code: "InvalidReservationID.NotFound",
			find: finder(s.reservations)},
		{prefix: "ami", name: "image", noun: "image id", code: "InvalidAMIID.NotFound", find: finder(s.images),
			context: s.imageContext},
		{prefix: "lt", name: "launch-template", noun: "launch template", code: "InvalidLaunchTemplateId.NotFound",
			find: finder(s.templates)},
		{prefix: "vol", name: "volume", noun: "volume", code: "InvalidVolume.NotFound", find: finder(s.volumes),
			context: s.volumeContext},
		{prefix: "sir", name: "spot-instances-request", noun: "spot instance request ID",
			code: "InvalidSpotInstanceRequestID.NotFound", find: finder(s.spotRequests)},
	}
}

// reservation is the instances of one launch.
type reservation struct {
	entity
	requester  string // AWS service that asked for it, "" for users
	key        tokenKey
	parameters string // of the request, for its token
	instances  []*instance
}

// tokenKey is the scope of a client token: RunInstances is idempotent in a zone when the request names one, explicitly
// or by its subnet, else in the region. https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
type tokenKey struct{ token, zone string }

// instance is one VM.
type instance struct {
	entity
	reservation *reservation
	index       int // in its launch
	data        launchData
	kind        *instanceType
	image       *image
	zone        string
	subnet      string
	vpc         string
	token       string
	launched    time.Time // of the last start
	userdata    []byte    // decoded
	profile     *Profile
	groups      []string // security groups, kept for the answers about a terminated one
	volumes     []string
	privateName string // DNS
	spot        *spotRequest

	state      string
	changed    time.Time // when it came into the state
	due        time.Time // when it leaves a passing state by itself; zero: when its machine says so
	reason     *stateReason
	transition string

	machine    Machine
	start      int // counts starts: what a machine of an earlier start says is not heard
	notice     *spotNotice
	rebalance  time.Time // a recommendation was given; zero: none
	lifecycle  string    // autoscaling/target-lifecycle-state
	protection bool      // DisableApiTermination
}

// spotNotice is a two-minute warning.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
type spotNotice struct {
	at     time.Time
	action string // terminate, stop, hibernate
}

// stateReason says why an instance is as it is.
type stateReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

// Reasons. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
var (
	byUser = &stateReason{Code: "Client.UserInitiatedShutdown",
		Message: "Client.UserInitiatedShutdown: User initiated shutdown"}
	byInstance = &stateReason{Code: "Client.InstanceInitiatedShutdown",
		Message: "Client.InstanceInitiatedShutdown: Instance initiated shutdown"}
	bySpot = &stateReason{Code: "Server.SpotInstanceTermination",
		Message: "Server.SpotInstanceTermination: Spot instance termination"}
	bySpotStop = &stateReason{Code: "Server.SpotInstanceShutdown",
		Message: "Server.SpotInstanceShutdown: Instance was stopped by Spot"}
	byFailure = &stateReason{Code: "Server.InternalError", Message: "Server.InternalError: Internal error on launch"}
)

// alive tells whether it has or will have a machine again: everything but what is on its way out.
func (i *instance) alive() bool { return i.state != stateTerminated && i.state != stateShuttingDown }

// enter moves an instance into a state and says why.
func (s *Service) enter(i *instance, state string, why *stateReason) {
	now := s.cfg.Now()
	i.state, i.changed, i.due, i.reason, i.transition = state, now, time.Time{}, why, ""
	if why != nil {
		switch why.Code {
		case byUser.Code:
			i.transition = "User initiated (" + now.UTC().Format("2006-01-02 15:04:05 MST") + ")"
		case bySpot.Code, bySpotStop.Code:
			i.transition = "Service initiated (" + now.UTC().Format("2006-01-02 15:04:05 MST") + ")"
		}
	}
}

// instanceContext are the condition keys of an existing instance.
func (s *Service) instanceContext(id string) policy.Context {
	i := s.instances[id]
	c := policy.Context{
		"ec2:InstanceID": {id}, "ec2:InstanceType": {i.kind.name}, "ec2:AvailabilityZone": {i.zone},
		"ec2:Tenancy": {i.tenancy()}, "ec2:RootDeviceType": {"ebs"},
		"ec2:EbsOptimized": {boolText(i.data.EbsOptimized)},
	}
	maps.Copy(c, metadataContext(i.data.MetadataOptions))
	if i.profile != nil {
		c["ec2:InstanceProfile"] = []string{i.profile.ARN}
	}
	return c
}

func (i *instance) tenancy() string {
	if p := i.data.Placement; p != nil && p.Tenancy != nil {
		return *p.Tenancy
	}
	return "default"
}

// instanceByID finds one for an operation on it. A terminated one is found as long as it is visible.
func (s *Service) instanceByID(id string) (*instance, error) {
	if !wellFormed(id, "i") {
		return nil, failf("InvalidInstanceID.Malformed", "Invalid id: \"%s\"", id)
	}
	if i := s.instances[id]; i != nil {
		return i, nil
	}
	return nil, failf("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
}

// instancesByID finds several, each once, in the order they were named.
func (s *Service) instancesByID(ids []string) ([]*instance, error) {
	if len(ids) == 0 {
		return nil, missing("InstanceId")
	}
	seen := map[string]bool{}
	var found []*instance
	for _, id := range ids {
		i, err := s.instanceByID(id)
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			found = append(found, i)
		}
		seen[id] = true
	}
	return found, nil
}

// wellFormed tells whether an ID is a prefix and 8 or 17 hexadecimal digits.
func wellFormed(id, prefix string) bool {
	if len(id) <= len(prefix)+1 || id[:len(prefix)+1] != prefix+"-" {
		return false
	}
	digits := id[len(prefix)+1:]
	if len(digits) != 8 && len(digits) != 17 {
		return false
	}
	for _, d := range digits {
		if (d < '0' || d > '9') && (d < 'a' || d > 'f') {
			return false
		}
	}
	return true
}

// dryRun is the answer to a call that was allowed but only asks whether it would be.
func dryRun(asked bool) error {
	if !asked {
		return nil
	}
	return wire.Errorf(http.StatusPreconditionFailed, "DryRunOperation",
		"Request would have succeeded, but DryRun flag is set.")
}

// invalidCombination refuses parameters that exclude each other.
func invalidCombination(message string) error {
	return failf("InvalidParameterCombination", "%s", message)
}

func tokenMismatch(token string) error {
	return failf("IdempotentParameterMismatch",
		"The request with client token %s uses parameters that do not match those of an earlier request with it.",
		token)
}

// through makes filters over what answers show of a resource filters of the resource.
func through[T, X any](render func(T) X, filters map[string]func(X) []string) map[string]func(T) []string {
	out := make(map[string]func(T) []string, len(filters))
	for name, values := range filters {
		out[name] = func(r T) []string { return values(render(r)) }
	}
	return out
}

// one is a filter over one value; an empty one is none.
func one[X any](text func(X) string) func(X) []string {
	return func(x X) []string {
		if v := text(x); v != "" {
			return []string{v}
		}
		return nil
	}
}

func ptr[T any](v T) *T { return &v }

// value is what a pointer points to, or the zero value.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// orElse is what a pointer points to, or another value.
func orElse[T any](p *T, other T) T {
	if p == nil {
		return other
	}
	return *p
}

func boolText(p *bool) string {
	if value(p) {
		return "true"
	}
	return "false"
}

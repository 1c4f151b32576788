package ec2

import (
	"maps"
	"net/http"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Names of instance states in the API.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html
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
	// terminatedVisible is the time that a terminated instance is still described: "usually about one hour".
	terminatedVisible = time.Hour
	// tokenValid is how long EC2 remembers a client token after the end of the instances that were launched with it:
	// "at least 24 hours".
	tokenValid = 24 * time.Hour
)

// Profile is EC2's view of an IAM instance profile.
type Profile struct {
	ARN, ID, Name string
	RoleName      string // "" without a role
	RoleARN       string
}

// Credentials are the credentials that the metadata service returns for an instance's role.
type Credentials struct {
	Access, Secret, Token string
	Expires               time.Time
}

// Identity is EC2's access to IAM. Its methods are called with the cloud's lock held.
type Identity interface {
	// InstanceProfile finds a profile by name or ARN.
	InstanceProfile(nameOrARN string) (Profile, bool)
	// RoleCredentials returns credentials of a role. The session name is the ID of the instance that gets them.
	RoleCredentials(role, session string) Credentials
}

// resources is the state of the resources that do not belong to a network: instances, volumes, spot requests, images,
// launch templates, keys and hosts.
type resources struct {
	instances    map[string]*instance
	reservations map[string]*reservation
	tokens       map[tokenKey]*reservation
	images       map[string]*image
	templates    map[string]*template
	volumes      map[string]*volume
	keys         map[string]Key    // by ARN
	snapshots    map[string]string // owners by ID
	keyPairs     map[string]string // names by ID
	hosts        map[string]bool   // dedicated hosts by ID
	placements   map[string]bool   // placement groups by name
	spotRequests map[string]*spotRequest
	spotRole     bool // the account has the service-linked role of spot instances
	types        map[string]*instanceType
	identity     Identity
	bootTime     time.Duration
	stopTime     time.Duration
	hibernatable time.Duration   // time since its last start after which an instance can hibernate
	vcpuLimit    int             // vCPUs of all running on-demand instances; 0: no limit
	spotLimit    int             // spot instances; 0: no limit
	withoutType  map[string]bool // "type zone" pairs that are not offered
}

func newResources() resources {
	return resources{
		instances: map[string]*instance{}, reservations: map[string]*reservation{}, tokens: map[tokenKey]*reservation{},
		images:    map[string]*image{},
		templates: map[string]*template{}, volumes: map[string]*volume{},
		spotRequests: map[string]*spotRequest{}, keys: map[string]Key{}, snapshots: map[string]string{},
		keyPairs: map[string]string{},
		hosts:    map[string]bool{}, placements: map[string]bool{},
		types: instanceTypes(), withoutType: map[string]bool{},
	}
}

// SetIdentity connects EC2 to IAM. Without IAM, every instance profile exists and has a role of the same name.
func (s *Service) SetIdentity(i Identity) { s.identity = i }

// SetTimes sets how long an instance without a real machine stays pending. It also sets the shortest time for which any
// instance stays shutting-down or stopping. With 0, the default, such a state ends at the next call of an operation.
func (s *Service) SetTimes(boot, stop time.Duration) { s.bootTime, s.stopTime = boot, stop }

// machineOperations returns the handlers of operations on the resources in resources. Each handler first applies the
// state changes that are due.
func (s *Service) machineOperations() map[string]wire.Handler {
	all := map[string]wire.Handler{
		"RunInstances":                   s.runInstances,
		"StartInstances":                 s.startInstances,
		"StopInstances":                  s.stopInstances,
		"TerminateInstances":             s.terminateInstances,
		"DescribeInstances":              s.describeInstances,
		"GetConsoleOutput":               s.getConsoleOutput,
		"GetInstanceUefiData":            s.getInstanceUefiData,
		"DescribeImages":                 s.describeImages,
		"CreateLaunchTemplate":           s.createLaunchTemplate,
		"CreateLaunchTemplateVersion":    s.createLaunchTemplateVersion,
		"ModifyLaunchTemplate":           s.modifyLaunchTemplate,
		"DeleteLaunchTemplate":           s.deleteLaunchTemplate,
		"DescribeLaunchTemplates":        s.describeLaunchTemplates,
		"DescribeLaunchTemplateVersions": s.describeLaunchTemplateVersions,
	}
	maps.Copy(all, s.leftoverOperations())
	for action, handler := range all {
		all[action] = func(c *wire.Call) (any, error) {
			s.settle()
			return handler(c)
		}
	}
	return all
}

// machineKinds returns the kinds of the resources in resources.
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

// reservation groups the instances of one launch.
type reservation struct {
	entity
	requester  string // AWS service that launched it, "" for users
	key        tokenKey
	parameters string // the request's parameters, compared when its token is used again
	instances  []*instance
}

// tokenKey is the scope of a client token. RunInstances is idempotent within a zone if the request names a zone or a
// subnet. Otherwise it is idempotent within the region.
// https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
type tokenKey struct{ token, zone string }

// instance is one VM.
type instance struct {
	entity
	reservation *reservation
	index       int // index in its launch
	data        launchData
	kind        *instanceType
	image       *image
	zone        string
	subnet      string
	vpc         string
	token       string
	launched    time.Time // time of the last start
	userdata    []byte    // decoded
	profile     *Profile
	groups      []string // security groups, kept for describing a terminated instance
	volumes     []string
	privateName string // private DNS name
	spot        *spotRequest

	state      string
	changed    time.Time // time of the last state change
	due        time.Time // end of a transitional state; zero: the machine ends it
	reason     *stateReason
	transition string

	machine    Machine
	console    func() []byte // of the machine that was started last; nil without one
	start      int           // number of starts: events of a machine from an earlier start are ignored
	notice     *spotNotice
	rebalance  time.Time // time of the rebalance recommendation; zero: none
	events     []scheduledEvent
	lifecycle  string       // autoscaling/target-lifecycle-state
	protection bool         // DisableApiTermination
	keyRefused bool         // A volume's KMS key may not be used: the instance does not start.
	restarted  bool         // by StartInstances
	public     []*Interface // interfaces that get a new public address at the next start
}

// spotNotice is the two-minute notice of a spot interruption.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
type spotNotice struct {
	at     time.Time
	action string // terminate, stop, hibernate
}

// stateReason is the reason for an instance's state.
type stateReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

// Reasons for states.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
var (
	byUser = &stateReason{Code: "Client.UserInitiatedShutdown",
		Message: "Client.UserInitiatedShutdown: User initiated shutdown"}
	byHibernate = &stateReason{Code: "Client.UserInitiatedHibernate",
		Message: "Client.UserInitiatedHibernate: User initiated hibernate"}
	byInstance = &stateReason{Code: "Client.InstanceInitiatedShutdown",
		Message: "Client.InstanceInitiatedShutdown: Instance initiated shutdown"}
	bySpot = &stateReason{Code: "Server.SpotInstanceTermination",
		Message: "Server.SpotInstanceTermination: Spot instance termination"}
	bySpotStop = &stateReason{Code: "Server.SpotInstanceShutdown",
		Message: "Server.SpotInstanceShutdown: Instance was stopped by Spot"}
	byClient  = &stateReason{Code: "Client.InternalError", Message: "Client.InternalError: Client error on launch"}
	byFailure = &stateReason{Code: "Server.InternalError", Message: "Server.InternalError: Internal error on launch"}
)

// alive reports whether an instance is neither terminated nor shutting down.
func (i *instance) alive() bool { return i.state != stateTerminated && i.state != stateShuttingDown }

// enter sets an instance's state and the reason for it.
func (s *Service) enter(i *instance, state string, why *stateReason) {
	now := s.cfg.Now()
	i.state, i.changed, i.due, i.reason, i.transition = state, now, time.Time{}, why, ""
	if why != nil {
		switch why.Code {
		case byUser.Code, byHibernate.Code:
			i.transition = "User initiated (" + now.UTC().Format("2006-01-02 15:04:05 MST") + ")"
		case bySpot.Code, bySpotStop.Code:
			i.transition = "Service initiated (" + now.UTC().Format("2006-01-02 15:04:05 MST") + ")"
		}
	}
}

// instanceContext returns the condition keys of an existing instance.
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

func (i *instance) tenancy() string { return i.data.Placement.tenancy() }

// tenancy returns the tenancy of an instance with this placement. A nil placement means "default". A group of hosts
// means "host".
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Placement.html
func (p *placement) tenancy() string {
	switch {
	case p != nil && p.HostResourceGroupARN != nil:
		return "host"
	case p != nil && p.Tenancy != nil:
		return *p.Tenancy
	}
	return "default"
}

// AddHost adds a dedicated host and returns its ID. The host never becomes full. It takes the cloud's lock.
func (s *Service) AddHost() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := newID("h")
	s.hosts[id] = true
	return id
}

// AddPlacementGroup adds a placement group. It takes the cloud's lock.
func (s *Service) AddPlacementGroup(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placements[name] = true
}

// instanceByID returns the instance with an ID. It also returns a terminated instance until terminatedVisible has
// passed.
func (s *Service) instanceByID(id string) (*instance, error) {
	if !wellFormed(id, "i") {
		return nil, failf("InvalidInstanceID.Malformed", "Invalid id: \"%s\"", id)
	}
	if i := s.instances[id]; i != nil {
		return i, nil
	}
	return nil, failf("InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
}

// instancesByID returns several instances, each once, in the order of the IDs.
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

// wellFormed reports whether an ID consists of the prefix and 8 or 17 hexadecimal digits.
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

// dryRun returns the DryRunOperation error for an allowed call that asks for a dry run, else nil.
func dryRun(asked bool) error {
	if !asked {
		return nil
	}
	return wire.Errorf(http.StatusPreconditionFailed, "DryRunOperation",
		"Request would have succeeded, but DryRun flag is set.")
}

// invalidCombination returns the error for parameters that exclude each other.
func invalidCombination(message string) error {
	return failf("InvalidParameterCombination", "%s", message)
}

func tokenMismatch(token string) error {
	return failf("IdempotentParameterMismatch",
		"The request with client token %s uses parameters that do not match those of an earlier request with it.",
		token)
}

// through converts filters that take the XML form of a resource to filters that take the resource itself. The new
// filters call render to get the XML form.
func through[T, X any](render func(T) X, filters map[string]func(X) []string) map[string]func(T) []string {
	out := make(map[string]func(T) []string, len(filters))
	for name, values := range filters {
		out[name] = func(r T) []string { return values(render(r)) }
	}
	return out
}

// one makes a filter from a function that returns one text. If the text is empty, the resource has no value for the
// filter.
func one[X any](text func(X) string) func(X) []string {
	return func(x X) []string {
		if v := text(x); v != "" {
			return []string{v}
		}
		return nil
	}
}

func ptr[T any](v T) *T { return &v }

// value returns the value that a pointer points to, or the zero value if it is nil.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// orElse returns the value that a pointer points to, or another value if it is nil.
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

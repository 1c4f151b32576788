package ec2

import (
	"fmt"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Launch is the launch of one instance from a launch template, by an AWS service for its user. The service has already
// checked its user's permission.
type Launch struct {
	Template TemplateRef
	Type     string // overrides the template's type; "": no override
	Image    string // overrides the template's image; "": no override
	Subnet   string
	Spot     *bool // overrides the template's market; nil: no override
	MaxPrice string
	Tags     map[string]string // on the instance and, except AWS's own tags, on its volumes and interfaces
	By       string            // such as autoscaling.amazonaws.com
	State    string            // autoscaling/target-lifecycle-state in its metadata; "": none
}

// Launch launches one instance and returns its ID. It returns the errors of RunInstances.
func (s *Service) Launch(l Launch) (string, error) {
	s.settle()
	planned, err := s.serviceLaunch(l)
	if err != nil {
		return "", err
	}
	planned.keyRefused = !s.mayEncrypt(nil, planned)
	r, err := s.launch(planned)
	if err != nil {
		return "", err
	}
	i := r.instances[0]
	i.lifecycle = l.State
	return i.id, nil
}

// serviceLaunch makes the launch that an AWS service asks for. It also looks up the launch template and the other
// resources in the service's request.
func (s *Service) serviceLaunch(l Launch) (*launch, error) {
	planned := &launch{min: 1, max: 1, by: l.By, extra: l.Tags}
	if l.Type != "" {
		planned.data.InstanceType = &l.Type
	}
	if l.Image != "" {
		planned.data.ImageID = &l.Image
	}
	planned.asked = planned.data
	if err := s.useTemplate(planned, l.Template); err != nil {
		return nil, err
	}
	d := &planned.data
	if l.Spot != nil {
		d.InstanceMarketOptions = nil
		if *l.Spot {
			d.InstanceMarketOptions = &marketOptions{MarketType: ptr("spot")}
			if l.MaxPrice != "" {
				d.InstanceMarketOptions.SpotOptions = &spotOptions{MaxPrice: &l.MaxPrice}
			}
		}
	}
	// The AWS service chooses the subnet of the primary interface. The launch template may lack that interface.
	if len(d.NetworkInterface) == 0 {
		d.NetworkInterface = []launchInterface{{DeviceIndex: ptr(int32(0)), SecurityGroupID: d.SecurityGroupID}}
	}
	for n, nic := range d.NetworkInterface {
		if value(nic.DeviceIndex) == 0 && nic.NetworkInterfaceID == nil {
			nic.SubnetID = &l.Subnet
			d.NetworkInterface = append([]launchInterface(nil), d.NetworkInterface...)
			d.NetworkInterface[n] = nic
		}
	}
	if err := s.locate(planned); err != nil {
		return nil, err
	}
	return planned, s.resolve(planned)
}

// CheckLaunch checks that the caller may launch the instance. A service such as Auto Scaling calls CheckLaunch before
// it accepts a launch template from a caller.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-template-permissions.html
func (s *Service) CheckLaunch(c *wire.Call, l Launch) error {
	planned, err := s.serviceLaunch(l)
	if err != nil {
		return err
	}
	return s.authorizeLaunch(c, planned)
}

// Terminate terminates an instance for a service. An instance that does not exist is not an error.
func (s *Service) Terminate(id string) {
	s.settle()
	if i := s.instances[id]; i != nil && i.alive() {
		s.end(i, stateShuttingDown, byUser)
	}
}

// SetLifecycle sets autoscaling/target-lifecycle-state in an instance's metadata.
func (s *Service) SetLifecycle(id, state string) {
	if i := s.instances[id]; i != nil {
		i.lifecycle = state
	}
}

// TemplateView describes a version of a launch template to other services.
type TemplateView struct {
	ID, Name    string
	Version     string // the version's number
	Image, Type string // "" if the template does not set them
	Groups      int    // number of security groups of the primary interface
}

// Template returns a version of a launch template.
func (s *Service) Template(ref TemplateRef) (TemplateView, error) {
	t, err := s.template(ref.ID, ref.Name)
	if err != nil {
		return TemplateView{}, err
	}
	v, err := t.version(ref.Version)
	if err != nil {
		return TemplateView{}, err
	}
	return TemplateView{
		ID: t.id, Name: t.name, Version: strconv.FormatInt(v.number, 10), Image: value(v.data.ImageID),
		Type:   value(v.data.InstanceType),
		Groups: len(v.data.SecurityGroupID),
	}, nil
}

// String formats the reference for messages.
func (r TemplateRef) String() string { return fmt.Sprintf("%s%s:%s", r.ID, r.Name, r.Version) }

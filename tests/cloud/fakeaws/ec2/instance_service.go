package ec2

import (
	"fmt"
	"strconv"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Launch is what a service of AWS launches for its users: one instance of a launch template. The service has asked for
// its user's permission before.
type Launch struct {
	Template TemplateRef
	Type     string // instead of the template's; ""
	Image    string // instead of the template's; ""
	Subnet   string
	Spot     *bool // instead of the template's market; nil: as the template says
	MaxPrice string
	Tags     map[string]string // on the instance and, without those of AWS, on its volumes and interfaces
	By       string            // autoscaling.amazonaws.com
	State    string            // autoscaling/target-lifecycle-state in its metadata; "": none
}

// Launch launches one instance and returns its ID. Errors are those of RunInstances.
func (s *Service) Launch(l Launch) (string, error) {
	s.settle()
	planned, err := s.serviceLaunch(l)
	if err != nil {
		return "", err
	}
	r, err := s.launch(planned)
	if err != nil {
		return "", err
	}
	i := r.instances[0]
	i.lifecycle = l.State
	return i.id, nil
}

// serviceLaunch resolves a service's launch.
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
	// The service puts its subnet into the template's primary interface, which may lack one.
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

// CheckLaunch tells whether the caller of a service might launch this himself: services ask before they use a launch
// template for somebody.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-launch-template-permissions.html
func (s *Service) CheckLaunch(c *wire.Call, l Launch) error {
	planned, err := s.serviceLaunch(l)
	if err != nil {
		return err
	}
	return s.authorizeLaunch(c, planned)
}

// Terminate ends an instance for a service. One that is gone already is no error.
func (s *Service) Terminate(id string) {
	s.settle()
	if i := s.instances[id]; i != nil && i.alive() {
		s.end(i, stateShuttingDown, byUser)
	}
}

// SetLifecycle changes autoscaling/target-lifecycle-state in an instance's metadata.
func (s *Service) SetLifecycle(id, state string) {
	if i := s.instances[id]; i != nil {
		i.lifecycle = state
	}
}

// TemplateView is what services see of a launch template's version.
type TemplateView struct {
	ID, Name    string
	Version     string // the number
	Image, Type string // "" when the template leaves them open
	Groups      int    // how many security groups its primary interface has
}

// Template finds a version of a launch template.
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

// String is for messages.
func (r TemplateRef) String() string { return fmt.Sprintf("%s%s:%s", r.ID, r.Name, r.Version) }

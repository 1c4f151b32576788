package ec2

import (
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxUserData is the limit of user data in bytes, before base64 encoding.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html
const maxUserData = 16 << 10

// runInput is the request of RunInstances.
type runInput struct {
	launchData
	ClientToken       string
	DryRun            bool
	EnablePrimaryIpv6 *bool
	Ipv6Address       []ipv6Address
	Ipv6AddressCount  *int32
	LaunchTemplate    *struct {
		LaunchTemplateID   string `query:"LaunchTemplateId"`
		LaunchTemplateName string
		Version            string
	}
	MaxCount         *int32
	MinCount         *int32
	PrivateIPAddress *string `query:"PrivateIpAddress"`
	RAMDiskID        *string `query:"RamdiskId"`
	SubnetID         *string `query:"SubnetId"`
}

func (s *Service) runInstances(c *wire.Call) (any, error) {
	var in runInput
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	l, err := s.launchOf(in)
	if err != nil {
		return nil, err
	}
	if l.token, err = s.tokenOf(in.ClientToken, l); err != nil {
		return nil, err
	}
	parameters := canonical(c.Form)
	if earlier := s.tokens[l.token]; earlier != nil && l.token.token != "" {
		// An earlier request had the same client token. The answer describes the launch of that request, so the caller
		// needs permission for that launch.
		if err := s.authorizeLaunch(c, l); err != nil {
			return nil, err
		}
		return s.repeated(earlier, parameters)
	}
	if err := s.resolve(l); err != nil {
		return nil, err
	}
	if err := s.authorizeLaunch(c, l); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	l.keyRefused = !s.mayEncrypt(c, l)
	r, err := s.launch(l)
	if err != nil {
		return nil, err
	}
	r.parameters = parameters
	return s.reservationXML(r, r.instances), nil
}

// repeated answers a request whose client token belongs to an earlier launch. It launches nothing.
func (s *Service) repeated(r *reservation, parameters string) (any, error) {
	if r.parameters != parameters {
		return nil, tokenMismatch(r.key.token)
	}
	if !slices.ContainsFunc(r.instances, (*instance).alive) {
		return nil,
			failf("IdempotentInstanceTerminated",
				"The instance of the earlier request with client token %s has been terminated.", r.key.token)
	}
	return s.reservationXML(r, r.instances), nil
}

// canonical returns a request's parameters as a text. Two requests with the same client token must have the same text.
func canonical(form url.Values) string {
	clean := url.Values{}
	for name, values := range form {
		if name != "ClientToken" && name != "DryRun" {
			clean[name] = values
		}
	}
	return clean.Encode()
}

// tokenOf checks a token and returns its scope.
func (s *Service) tokenOf(token string, l *launch) (tokenKey, error) {
	if len(token) > 64 || strings.ContainsFunc(token, func(r rune) bool { return r < ' ' || r > '~' }) {
		return tokenKey{},
			failf("InvalidClientToken", "The client token is not a string of at most 64 ASCII characters")
	}
	return tokenKey{token: token, zone: l.zone}, nil
}

// decodeUserData decodes user data.
func decodeUserData(text *string) ([]byte, error) {
	if text == nil {
		return nil, nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(*text)
	if err != nil {
		return nil, failf("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	}
	if len(data) > maxUserData {
		return nil, failf("InvalidParameterValue", "User data is limited to %d bytes", maxUserData)
	}
	return data, nil
}

// launchOf reads a request and merges it with the launch template that it names. The request takes precedence.
func (s *Service) launchOf(in runInput) (*launch, error) {
	l := &launch{data: in.launchData, asked: in.launchData, min: value(in.MinCount), max: value(in.MaxCount),
		subnet: value(in.SubnetID)}
	switch {
	case in.MinCount == nil:
		return nil, missing("MinCount")
	case in.MaxCount == nil:
		return nil, missing("MaxCount")
	case l.min < 1 || l.max < 1:
		return nil,
			failf("InvalidParameterValue", "Value (%d) for parameter MinCount or MaxCount is invalid. Minimum is 1.",
				min(l.min, l.max))
	case l.min > l.max:
		return nil, failf("InvalidParameterValue", "The value for MinCount (%d) is larger than that for MaxCount (%d)",
			l.min, l.max)
	}
	if t := in.LaunchTemplate; t != nil {
		if err := s.useTemplate(l, TemplateRef{ID: t.LaunchTemplateID, Name: t.LaunchTemplateName,
			Version: t.Version}); err != nil {
			return nil, err
		}
	}
	if err := l.primary(in); err != nil {
		return nil, err
	}
	return l, s.locate(l)
}

// useTemplate merges a launch with a template.
func (s *Service) useTemplate(l *launch, ref TemplateRef) error {
	t, err := s.template(ref.ID, ref.Name)
	if err != nil {
		return err
	}
	v, err := t.version(ref.Version)
	if err != nil {
		return err
	}
	if v.data.InstanceRequirements != nil {
		return failf("InvalidParameterCombination",
			"RunInstances does not take launch templates with InstanceRequirements.")
	}
	l.templateID, l.templateVersion, l.templateName = t.id, v.number, t.name
	l.data = overlay(v.data.launchData, l.data)
	return nil
}

// primary moves the network settings at the request's top level into the primary interface. AWS refuses settings in
// both places.
func (l *launch) primary(in runInput) error {
	d := &l.data
	own := len(d.SecurityGroupID)+len(d.SecurityGroup) > 0
	if len(d.NetworkInterface) > 0 {
		switch {
		case in.SubnetID != nil:
			return invalidCombination(
				"Network interfaces and an instance-level subnet ID may not be specified on the same request")
		case own:
			return invalidCombination(
				"Network interfaces and an instance-level security groups may not be specified on the same request")
		case in.PrivateIPAddress != nil:
			return invalidCombination(
				"Network interfaces and an instance-level private IP address may not be specified on the same request")
		case in.Ipv6AddressCount != nil || len(in.Ipv6Address) > 0 || in.EnablePrimaryIpv6 != nil:
			return invalidCombination(
				"Network interfaces and instance-level IPv6 addresses may not be specified on the same request")
		}
		return nil
	}
	l.implicit = true
	nic := launchInterface{
		DeviceIndex: ptr(int32(0)), SecurityGroupID: d.SecurityGroupID, PrivateIPAddress: in.PrivateIPAddress,
		Ipv6AddressCount: in.Ipv6AddressCount, Ipv6Addresses: in.Ipv6Address,
		PrimaryIpv6: in.EnablePrimaryIpv6, SubnetID: in.SubnetID,
	}
	if len(d.SecurityGroup) > 0 {
		return failf("InvalidParameterCombination", "The parameter groupName cannot be used with the parameter subnet")
	}
	l.data.NetworkInterface = []launchInterface{nic}
	return nil
}

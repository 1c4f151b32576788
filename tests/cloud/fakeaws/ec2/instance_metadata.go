package ec2

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// metadata answers one path of the instance metadata service. The caller holds the lock. Paths are relative to
// /latest/meta-data/, except "dynamic/…" and "user-data", which are relative to /latest/. The answer for a directory
// lists the names in it, one per line. Names of directories end with a slash.
//
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html
func (s *Service) metadata(i *instance, path string) (string, bool) {
	s.settle()
	path = strings.TrimPrefix(strings.TrimPrefix(strings.Trim(path, "/"), "latest/"), "meta-data/")
	switch path {
	case "user-data":
		return string(i.userdata), len(i.userdata) > 0
	case "dynamic/instance-identity/document":
		return s.identityDocument(i), true
	case "dynamic/instance-identity/rsa2048":
		return s.signer.sign(s.identityDocument(i)), true
	case "meta-data":
		path = ""
	}
	// Credentials are created only when they are requested.
	if role, asked := strings.CutPrefix(path, "iam/security-credentials/"); asked {
		return s.roleDocument(i, role)
	}
	tree := s.metadataTree(i)
	if text, ok := tree[path]; ok {
		return text, true
	}
	names := map[string]bool{}
	for leaf := range tree {
		rest, ok := strings.CutPrefix(leaf, path+"/")
		if path == "" {
			rest, ok = leaf, true
		}
		if !ok {
			continue
		}
		name, _, deeper := strings.Cut(rest, "/")
		if deeper {
			name += "/"
		}
		names[name] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), "\n"), len(names) > 0
}

// metadataTree returns all metadata except credentials, by path.
func (s *Service) metadataTree(i *instance) map[string]string {
	x := s.instanceXML(i)
	n := s.subnets[i.subnet]
	tree := map[string]string{
		"ami-id": i.image.id, "ami-launch-index": strconv.Itoa(i.index), "ami-manifest-path": "(unknown)",
		"block-device-mapping/ami":  i.image.ami.RootDevice,
		"block-device-mapping/root": i.image.ami.RootDevice, "hostname": i.privateName, "instance-action": "none",
		"instance-id": i.id, "instance-life-cycle": "on-demand",
		"instance-type": i.kind.name, "local-hostname": i.privateName, "placement/availability-zone": i.zone,
		"placement/availability-zone-id": s.zoneID(i.zone),
		"placement/region":               s.cfg.Region, "profile": "default-hvm", "reservation-id": i.reservation.id,
		"services/domain": "amazonaws.com", "services/partition": "aws",
	}
	var names []string
	for _, g := range x.Groups {
		names = append(names, g.Name)
	}
	tree["security-groups"] = strings.Join(names, "\n")
	if x.PrivateIP != "" {
		tree["local-ipv4"] = x.PrivateIP
	}
	if x.Ipv6Address != "" {
		tree["ipv6"] = x.Ipv6Address
	}
	if x.PublicIP != "" {
		tree["public-ipv4"], tree["public-hostname"] = x.PublicIP, x.PublicDNSName
	}
	for k, nic := range x.Interfaces {
		if k == 0 {
			tree["mac"] = nic.MAC
		}
		s.interfaceTree(tree, nic)
	}
	if n == nil {
		delete(tree, "mac")
	}
	if i.profile != nil {
		info, _ := json.Marshal(struct { // encoding three strings never fails
			Code, LastUpdated, InstanceProfileArn, InstanceProfileId string
		}{"Success", isoSeconds(i.launched), i.profile.ARN, i.profile.ID})
		tree["iam/info"] = string(info)
		tree["iam/security-credentials/"+i.profile.RoleName] = ""
	}
	if i.spot != nil {
		tree["instance-life-cycle"] = "spot"
	}
	if v := i.notice; v != nil {
		action, _ := json.Marshal(map[string]string{"action": v.action, "time": isoSeconds(v.at)})
		tree["spot/instance-action"] = string(action)
		tree["instance-action"] = v.action
		if v.action == "terminate" {
			tree["spot/termination-time"] = isoSeconds(v.at)
		}
	}
	if !i.rebalance.IsZero() {
		notice, _ := json.Marshal(map[string]string{"noticeTime": isoSeconds(i.rebalance)})
		tree["events/recommendations/rebalance"] = string(notice)
	}
	if len(i.events) > 0 {
		events, _ := json.MarshalIndent(i.events, "", "  ") // encoding strings never fails
		tree["events/maintenance/scheduled"] = string(events)
	}
	if i.lifecycle != "" {
		tree["autoscaling/target-lifecycle-state"] = i.lifecycle
	}
	if value(i.data.MetadataOptions.InstanceMetadataTags) == "enabled" {
		for key, tag := range s.tags[i.id] {
			if !strings.HasPrefix(key, "aws:") {
				tree["tags/instance/"+key] = tag
			}
		}
	}
	return tree
}

// interfaceTree adds the metadata of one network interface to the tree.
func (s *Service) interfaceTree(tree map[string]string, nic interfaceOfXML) {
	at := "network/interfaces/macs/" + nic.MAC + "/"
	var v4, v6, publics []string
	for _, ip := range nic.PrivateIPs {
		v4 = append(v4, ip.PrivateIP)
		if ip.Association != nil {
			publics = append(publics, ip.Association.PublicIP)
			tree[at+"ipv4-associations/"+ip.Association.PublicIP] = ip.PrivateIP
		}
	}
	for _, ip := range nic.Ipv6Addresses {
		v6 = append(v6, value(ip.Ipv6Address))
	}
	lists := map[string][]string{
		"local-ipv4s": v4, "ipv6s": v6, "public-ipv4s": publics,
		"security-group-ids": each(nic.Groups, func(g groupRefXML) string {
			return g.ID
		}), "security-groups": each(nic.Groups, func(g groupRefXML) string { return g.Name }),
	}
	if n := s.subnets[nic.SubnetID]; n != nil {
		if n.block.IsValid() {
			lists["subnet-ipv4-cidr-block"] = []string{n.block.String()}
		}
		lists["subnet-ipv6-cidr-blocks"] = prefixes(n.blocks6)
	}
	if v := s.vpcs[nic.VpcID]; v != nil {
		lists["vpc-ipv4-cidr-block"] = prefixes(v.blocks)[:1]
		lists["vpc-ipv4-cidr-blocks"] = prefixes(v.blocks)
		lists["vpc-ipv6-cidr-blocks"] = prefixes(v.blocks6)
	}
	for name, values := range lists {
		if len(values) > 0 {
			tree[at+name] = strings.Join(values, "\n")
		}
	}
	maps.Copy(tree, map[string]string{
		at + "device-number": strconv.Itoa(nic.Attachment.DeviceIndex), at + "interface-id": nic.ID, at +
			"mac": nic.MAC, at + "owner-id": nic.OwnerID,
		at + "subnet-id": nic.SubnetID, at + "vpc-id": nic.VpcID,
	})
	if nic.PrivateDNSName != "" {
		tree[at+"local-hostname"] = nic.PrivateDNSName
	}
}

// roleDocument returns credentials of the profile's role. It returns false if role is not the profile's role.
func (s *Service) roleDocument(i *instance, role string) (string, bool) {
	if i.profile == nil || i.profile.RoleName == "" || role != i.profile.RoleName || s.identity == nil {
		return "", false
	}
	c := s.identity.RoleCredentials(role, i.id)
	text, _ := json.Marshal(struct { // encoding strings never fails
		Code, LastUpdated, Type, AccessKeyId, SecretAccessKey, Token, Expiration string
	}{"Success", isoSeconds(s.cfg.Now()), "AWS-HMAC", c.Access, c.Secret, c.Token, isoSeconds(c.Expires)})
	return string(text), true
}

// identityDocument returns the instance identity document.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/retrieve-iid.html
func (s *Service) identityDocument(i *instance) string {
	var ip string
	if attached := s.attached(i.id); len(attached) > 0 && len(attached[0].IPv4) > 0 {
		ip = attached[0].IPv4[0].String()
	}
	text, _ := json.MarshalIndent(map[string]any{
		"accountId": s.cfg.Account, "architecture": i.kind.arch, "availabilityZone": i.zone, "billingProducts": nil,
		"devpayProductCodes": nil,
		"imageId":            i.image.id, "instanceId": i.id, "instanceType": i.kind.name, "kernelId": nil,
		"marketplaceProductCodes": nil, "pendingTime": isoSeconds(i.launched),
		"privateIp": ip, "ramdiskId": nil, "region": s.cfg.Region, "version": "2017-09-30",
	}, "", "  ")
	return string(text)
}

func isoSeconds(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }

// Metadata queries the metadata service like a process on the instance. It takes the cloud's lock.
func (s *Service) Metadata(id, path string) (text string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instances[id]
	if i == nil || !i.alive() {
		return "", false
	}
	return s.metadata(i, path)
}

// InstanceView is the view of an instance for other fakes and tests.
type InstanceView struct {
	ID, State, ReasonCode string
	Type, Image, Arch     string
	Zone, Subnet, VPC     string
	PrivateIP             netip.Addr // primary address; invalid without IPv4
	IPv6                  netip.Addr
	LaunchTime            time.Time
	Profile               string // ARN
	Role                  string
	Token                 string
	Spot                  bool
	Interruption          time.Time // end announced by the spot notice; zero: no notice
	Rebalance             time.Time // time of the rebalance recommendation; zero: none
	Userdata              []byte
	Template              string // ID of its launch template
	TemplateVersion       string
	HTTPTokens            string
}

// Instance returns an instance. It also returns a terminated instance until terminatedVisible has passed.
func (s *Service) Instance(id string) (InstanceView, bool) {
	s.settle()
	i := s.instances[id]
	if i == nil {
		return InstanceView{}, false
	}
	return s.view(i), true
}

// Instances returns all instances, oldest first.
func (s *Service) Instances() []InstanceView {
	s.settle()
	return each(sorted(s.instances), s.view)
}

func (s *Service) view(i *instance) InstanceView {
	v := InstanceView{
		ID: i.id, State: i.state, Type: i.kind.name, Image: i.image.id, Arch: i.kind.arch, Zone: i.zone,
		Subnet: i.subnet, VPC: i.vpc, LaunchTime: i.launched, Token: i.token,
		Spot: i.spot != nil, Rebalance: i.rebalance, Userdata: i.userdata,
		Template:        s.tags[i.id]["aws:ec2launchtemplate:id"],
		TemplateVersion: s.tags[i.id]["aws:ec2launchtemplate:version"],
		HTTPTokens:      value(i.data.MetadataOptions.HTTPTokens), ReasonCode: value(i.reason).Code,
	}
	if attached := s.attached(i.id); len(attached) > 0 {
		if len(attached[0].IPv4) > 0 {
			v.PrivateIP = attached[0].IPv4[0]
		}
		if len(attached[0].IPv6) > 0 {
			v.IPv6 = attached[0].IPv6[0]
		}
	}
	if i.notice != nil {
		v.Interruption = i.notice.at
	}
	if i.profile != nil {
		v.Profile, v.Role = i.profile.ARN, i.profile.RoleName
	}
	return v
}

// String describes the instance for messages of tests.
func (v InstanceView) String() string {
	return fmt.Sprintf("%s (%s, %s, %s)", v.ID, v.State, v.Type, v.Zone)
}

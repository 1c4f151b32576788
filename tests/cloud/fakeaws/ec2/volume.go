package ec2

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

// volume is an EBS volume that was created with an instance.
type volume struct {
	entity
	zone, device, snapshot string
	kmsKey                 string
	size, iops, throughput int32
	kind                   string // gp3 and so on
	encrypted              bool
	keep                   bool      // not deleted with its instance
	instance               *instance // nil means available
	attached               time.Time
}

// disk is a volume to create in a launch.
type disk struct {
	device     string
	size       int32
	kind       string
	iops       int32
	throughput int32
	encrypted  bool
	kmsKey     string
	snapshot   string
	named      bool // The launch names the snapshot; otherwise it is the image's.
	keep       bool
}

// disks returns the volumes of a launch: the image's root device, and the block device mappings of the request. A
// mapping overrides a device of the same name.
func disks(m *image, mappings []blockDevice) ([]disk, error) {
	all := map[string]disk{m.ami.RootDevice: {device: m.ami.RootDevice, size: m.ami.RootGiB, kind: "gp3",
		snapshot: m.snapshot}}
	for _, b := range mappings {
		device := value(b.DeviceName)
		switch {
		case device == "":
			return nil, failf("MissingParameter", "The request must contain the parameter deviceName")
		case b.NoDevice != nil:
			delete(all, device)
			continue
		case b.VirtualName != nil && !strings.HasPrefix(*b.VirtualName, "ephemeral"):
			return nil, failf("InvalidBlockDeviceMapping", "Invalid virtual name: %s", *b.VirtualName)
		case b.VirtualName != nil:
			continue // no type here has instance storage, and AWS ignores such mappings then
		case b.Ebs == nil:
			return nil, failf("InvalidBlockDeviceMapping", "The mapping of device %s says nothing about it", device)
		}
		d, known := all[device]
		if !known {
			d = disk{device: device, kind: "gp3"}
		}
		e := b.Ebs
		d.kind = orElse(e.VolumeType, d.kind)
		d.snapshot, d.named = orElse(e.SnapshotID, d.snapshot), e.SnapshotID != nil
		d.encrypted = orElse(e.Encrypted, d.encrypted)
		d.kmsKey, d.iops, d.throughput, d.keep = value(e.KmsKeyID), value(e.Iops), value(e.Throughput),
			!orElse(e.DeleteOnTermination, true)
		if e.VolumeSize != nil {
			if known && *e.VolumeSize < d.size {
				return nil,
					failf("InvalidBlockDeviceMapping",
						"Volume of size %dGB is smaller than snapshot '%s', expect size >= %dGB", *e.VolumeSize,
						d.snapshot, d.size)
			}
			d.size = *e.VolumeSize
		}
		if d.size == 0 {
			return nil, failf("MissingParameter", "The request must contain the parameter size or snapshotId")
		}
		if err := d.check(); err != nil {
			return nil, err
		}
		all[device] = d
	}
	if _, ok := all[m.ami.RootDevice]; !ok {
		return nil, failf("InvalidBlockDeviceMapping", "The root device %s cannot be left out", m.ami.RootDevice)
	}
	return slices.SortedFunc(maps.Values(all), func(a, b disk) int {
		return cmp.Or(cmp.Compare(b2i(a.device != m.ami.RootDevice), b2i(b.device != m.ami.RootDevice)),
			cmp.Compare(a.device, b.device))
	}), nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// check refuses combinations that EBS does not support.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_EbsBlockDevice.html
func (d *disk) check() error {
	limits := map[string][2]int32{"gp2": {1, 16384}, "gp3": {1, 65536}, "io1": {4, 16384}, "io2": {4, 65536},
		"st1": {125, 16384}, "sc1": {125, 16384}, "standard": {1, 1024}}
	limit, known := limits[d.kind]
	switch {
	case !known:
		return failf("UnknownVolumeType", "Unknown volume type: %s", d.kind)
	case d.size < limit[0] || d.size > limit[1]:
		return failf("InvalidParameterValue", "Volume of %dGiB is invalid for type %s: %d to %d", d.size, d.kind,
			limit[0], limit[1])
	case d.iops != 0 && d.kind != "gp3" && d.kind != "io1" && d.kind != "io2":
		return failf("InvalidParameterCombination", "The parameter iops is not supported for %s volumes.", d.kind)
	case d.iops == 0 && (d.kind == "io1" || d.kind == "io2"):
		return failf("MissingParameter", "The request must contain the parameter iops for the volume type %s", d.kind)
	case d.throughput != 0 && d.kind != "gp3":
		return failf("InvalidParameterCombination", "The parameter throughput is not supported for %s volumes.", d.kind)
	case d.kmsKey != "" && !d.encrypted:
		return failf("InvalidParameterDependency", "The parameter KmsKeyId requires the parameter Encrypted to be set.")
	}
	return nil
}

// context returns the condition keys of a volume that a launch creates.
func (d *disk) context(zone string) policy.Context {
	c := policy.Context{
		"ec2:AvailabilityZone": {zone}, "ec2:Encrypted": {strconv.FormatBool(d.encrypted)},
		"ec2:VolumeSize": {strconv.Itoa(int(d.size))}, "ec2:VolumeType": {d.kind},
	}
	if d.iops != 0 {
		c["ec2:VolumeIops"] = []string{strconv.Itoa(int(d.iops))}
	}
	if d.throughput != 0 {
		c["ec2:VolumeThroughput"] = []string{strconv.Itoa(int(d.throughput))}
	}
	return c
}

func (s *Service) createVolume(i *instance, d disk) *volume {
	v := &volume{
		entity: s.entity("vol"), zone: i.zone, device: d.device, snapshot: d.snapshot, kmsKey: d.kmsKey, size: d.size,
		iops: d.iops, throughput: d.throughput, kind: d.kind,
		encrypted: d.encrypted, keep: d.keep, instance: i, attached: s.cfg.Now(),
	}
	if v.kind == "gp3" {
		v.iops, v.throughput = cmp.Or(v.iops, 3000), cmp.Or(v.throughput, 125)
	}
	if v.kind == "gp2" {
		v.iops = max(100, 3*v.size)
	}
	s.volumes[v.id] = v
	i.volumes = append(i.volumes, v.id)
	return v
}

// releaseVolumes deletes or detaches the volumes of a terminated instance.
func (s *Service) releaseVolumes(i *instance) {
	for _, id := range i.volumes {
		v := s.volumes[id]
		switch {
		case v == nil:
		case v.keep:
			v.instance = nil
		default:
			delete(s.volumes, id)
			delete(s.tags, id)
		}
	}
	i.volumes = nil
}

func (s *Service) volumeContext(id string) policy.Context {
	v := s.volumes[id]
	return policy.Context{
		"ec2:VolumeID": {id}, "ec2:AvailabilityZone": {v.zone}, "ec2:Encrypted": {strconv.FormatBool(v.encrypted)},
		"ec2:VolumeSize": {strconv.Itoa(int(v.size))},
		"ec2:VolumeType": {v.kind},
	}
}

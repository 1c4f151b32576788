package ec2

import (
	"maps"
	"slices"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// leftoverOperations returns the operations with which users find and delete what building an image leaves: volumes,
// images, snapshots and key pairs.
func (s *Service) leftoverOperations() map[string]wire.Handler {
	return map[string]wire.Handler{
		"DescribeVolumes": s.describeVolumes, "DeleteVolume": s.deleteVolume,
		"DescribeSnapshots": s.describeSnapshots, "DeleteSnapshot": s.deleteSnapshot,
		"DescribeKeyPairs": s.describeKeyPairs, "DeleteKeyPair": s.deleteKeyPair,
		"DeregisterImage": s.deregisterImage,
	}
}

// AddVolume adds a volume that is not attached, and returns its ID. It takes the cloud's lock.
func (s *Service) AddVolume(zone string, tags map[string]string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &volume{entity: s.entity("vol"), zone: zone, size: 8, kind: "gp3"}
	s.volumes[v.id] = v
	s.SetTags(v.id, tags)
	return v.id
}

// AddKeyPair adds a key pair and returns its ID. It takes the cloud's lock.
func (s *Service) AddKeyPair(name string, tags map[string]string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := newID("key")
	s.keyPairs[id] = name
	s.SetTags(id, tags)
	return id
}

type volumeXML struct {
	VolumeID         string `xml:"volumeId"`
	AvailabilityZone string `xml:"availabilityZone"`
	Status           string `xml:"status"`
	Size             int32  `xml:"size"`
	Tags             []Tag  `xml:"tagSet>item"`
}

func (s *Service) describeVolumes(c *wire.Call) (any, error) {
	if err := s.listAll(c); err != nil {
		return nil, err
	}
	var out struct {
		Volumes []volumeXML `xml:"volumeSet>item"`
	}
	for _, id := range slices.Sorted(maps.Keys(s.volumes)) {
		v := s.volumes[id]
		status := "in-use"
		if v.instance == nil {
			status = "available"
		}
		out.Volumes = append(out.Volumes, volumeXML{id, v.zone, status, v.size, s.tagList(id)})
	}
	return out, nil
}

func (s *Service) deleteVolume(c *wire.Call) (any, error) {
	var in struct {
		ID string `query:"VolumeId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, in.ID); err != nil {
		return nil, err
	}
	v := s.volumes[in.ID]
	if v == nil {
		return nil, failf("InvalidVolume.NotFound", "The volume '%s' does not exist.", in.ID)
	}
	if v.instance != nil {
		return nil, failf("VolumeInUse", "Volume %s is currently attached to %s", in.ID, v.instance.id)
	}
	drop(s, s.volumes, in.ID)
	return ok, nil
}

// listAll decodes and authorizes a call that lists all resources of a kind.
func (s *Service) listAll(c *wire.Call) error {
	var in struct {
		Owner      []string
		MaxResults int
		NextToken  string
	}
	if err := c.Decode(&in); err != nil {
		return err
	}
	return s.allowAny(c, c.Action)
}

type snapshotXML struct {
	SnapshotID string `xml:"snapshotId"`
	OwnerID    string `xml:"ownerId"`
	Status     string `xml:"status"`
	Tags       []Tag  `xml:"tagSet>item"`
}

// describeSnapshots lists the snapshots of the cloud's account.
func (s *Service) describeSnapshots(c *wire.Call) (any, error) {
	if err := s.listAll(c); err != nil {
		return nil, err
	}
	var out struct {
		Snapshots []snapshotXML `xml:"snapshotSet>item"`
	}
	for _, id := range slices.Sorted(maps.Keys(s.snapshots)) {
		if owner := s.snapshots[id]; owner == s.cfg.Account {
			out.Snapshots = append(out.Snapshots, snapshotXML{id, owner, "completed", s.tagList(id)})
		}
	}
	return out, nil
}

func (s *Service) deleteSnapshot(c *wire.Call) (any, error) {
	var in struct {
		ID string `query:"SnapshotId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	if s.snapshots[in.ID] == "" {
		return nil, failf("InvalidSnapshot.NotFound", "The snapshot '%s' does not exist.", in.ID)
	}
	for _, m := range s.images {
		if m.snapshot == in.ID {
			return nil, failf("InvalidSnapshot.InUse", "The snapshot %s is currently in use by %s", in.ID, m.id)
		}
	}
	drop(s, s.snapshots, in.ID)
	return ok, nil
}

type keyPairXML struct {
	KeyPairID string `xml:"keyPairId"`
	KeyName   string `xml:"keyName"`
	Tags      []Tag  `xml:"tagSet>item"`
}

func (s *Service) describeKeyPairs(c *wire.Call) (any, error) {
	if err := s.listAll(c); err != nil {
		return nil, err
	}
	var out struct {
		KeyPairs []keyPairXML `xml:"keySet>item"`
	}
	for _, id := range slices.Sorted(maps.Keys(s.keyPairs)) {
		out.KeyPairs = append(out.KeyPairs, keyPairXML{id, s.keyPairs[id], s.tagList(id)})
	}
	return out, nil
}

// deleteKeyPair succeeds even if there is no such key pair, as on AWS.
func (s *Service) deleteKeyPair(c *wire.Call) (any, error) {
	var in struct {
		ID string `query:"KeyPairId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	drop(s, s.keyPairs, in.ID)
	return ok, nil
}

func (s *Service) deregisterImage(c *wire.Call) (any, error) {
	var in struct {
		ID string `query:"ImageId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, in.ID); err != nil {
		return nil, err
	}
	if _, err := s.imageByID(in.ID); err != nil {
		return nil, err
	}
	drop(s, s.images, in.ID)
	return ok, nil
}

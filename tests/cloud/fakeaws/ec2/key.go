package ec2

import (
	"bytes"
	"crypto/md5" //nolint:gosec // AWS's fingerprints of imported keys are MD5
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// keyPair is an imported public key.
type keyPair struct {
	entity
	name, fingerprint, kind, public string
}

func (s *Service) keyPairContext(id string) policy.Context {
	k := s.keyPairs[id]
	return policy.Context{"ec2:KeyPairName": {k.name}, "ec2:KeyPairType": {k.kind}}
}

func (s *Service) keyPairByName(name string) *keyPair {
	for _, k := range s.keyPairs {
		if k.name == name {
			return k
		}
	}
	return nil
}

func (s *Service) importKeyPair(c *wire.Call) (any, error) {
	var in struct {
		DryRun            bool
		KeyName           string
		PublicKeyMaterial string
		TagSpecification  []TagSpecification
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := required("KeyName", in.KeyName, "PublicKeyMaterial", in.PublicKeyMaterial); err != nil {
		return nil, err
	}
	tags, err := specified(in.TagSpecification, "key-pair")
	if err != nil {
		return nil, err
	}
	if err := s.allowNew(c, c.Action, "key-pair", tags, policy.Context{"ec2:KeyPairName": {in.KeyName}}); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	if s.keyPairByName(in.KeyName) != nil {
		return nil, failf("InvalidKeyPair.Duplicate", "The keypair already exists")
	}
	k, err := parsePublicKey(in.PublicKeyMaterial)
	if err != nil {
		return nil, err
	}
	k.entity, k.name = s.entity("key"), in.KeyName
	s.keyPairs[k.id] = k
	s.SetTags(k.id, tags)
	return struct {
		Fingerprint string `xml:"keyFingerprint"`
		Name        string `xml:"keyName"`
		ID          string `xml:"keyPairId"`
		Tags        []Tag  `xml:"tagSet>item"`
	}{k.fingerprint, k.name, k.id, s.tagList(k.id)}, nil
}

// parsePublicKey reads an OpenSSH public key that was base64-encoded once more for the wire.
func parsePublicKey(material string) (*keyPair, error) {
	bad := failf("InvalidKey.Format", "Key is not in valid OpenSSH public key format")
	line, err := base64.StdEncoding.DecodeString(material)
	if err != nil {
		return nil, bad
	}
	fields := strings.Fields(string(line))
	if len(fields) < 2 {
		return nil, bad
	}
	blob, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil || len(blob) < 4 {
		return nil, bad
	}
	k := &keyPair{public: strings.TrimSpace(string(line))}
	switch fields[0] {
	case "ssh-rsa":
		k.kind = "rsa"
		sum := md5.Sum(blob) //nolint:gosec // see above
		parts := make([]string, len(sum))
		for n, b := range sum {
			parts[n] = fmt.Sprintf("%02x", b)
		}
		k.fingerprint = strings.Join(parts, ":")
	case "ssh-ed25519":
		k.kind = "ed25519"
		sum := sha256.Sum256(blob)
		k.fingerprint = base64.StdEncoding.EncodeToString(sum[:])
	default:
		return nil, bad
	}
	// The blob begins with the name of its kind, as a string with its length.
	if n := binary.BigEndian.Uint32(blob); int(n) != len(fields[0]) || !bytes.HasPrefix(blob[4:], []byte(fields[0])) {
		return nil, bad
	}
	return k, nil
}

func (s *Service) deleteKeyPair(c *wire.Call) (any, error) {
	var in struct {
		DryRun    bool
		KeyName   string
		KeyPairID string `query:"KeyPairId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	k := s.keyPairs[in.KeyPairID]
	if k == nil {
		k = s.keyPairByName(in.KeyName)
	}
	if k == nil { // deleting one that does not exist succeeds
		if err := c.Authorize("ec2:DeleteKeyPair", s.arn("key-pair", "*"), nil); err != nil {
			return nil, err
		}
		return ok, dryRun(in.DryRun)
	}
	if err := s.allow(c, c.Action, k.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	delete(s.keyPairs, k.id)
	delete(s.tags, k.id)
	return ok, nil
}

func (s *Service) describeKeyPairs(c *wire.Call) (any, error) {
	var in struct {
		DryRun           bool
		Filter           []Filter
		IncludePublicKey bool
		KeyName          []string
		KeyPairID        []string `query:"KeyPairId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	if err := s.allowAny(c, c.Action); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	ids := in.KeyPairID
	for _, name := range in.KeyName {
		k := s.keyPairByName(name)
		if k == nil {
			return nil, failf("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", name)
		}
		ids = append(ids, k.id)
	}
	found, _, err := find(s, s.keyPairs, query{ids: ids, filters: in.Filter}, map[string]func(*keyPair) []string{
		"key-pair-id": one(func(k *keyPair) string { return k.id }),
		"key-name":    one(func(k *keyPair) string { return k.name }),
		"fingerprint": one(func(k *keyPair) string { return k.fingerprint }),
	})
	if err != nil {
		return nil, err
	}
	type item struct {
		CreateTime  wire.Time `xml:"createTime"`
		Fingerprint string    `xml:"keyFingerprint"`
		Name        string    `xml:"keyName"`
		ID          string    `xml:"keyPairId"`
		Type        string    `xml:"keyType"`
		Public      string    `xml:"publicKey,omitempty"`
		Tags        []Tag     `xml:"tagSet>item"`
	}
	var out struct {
		Keys []item `xml:"keySet>item"`
	}
	for _, k := range found {
		i := item{CreateTime: wire.Time{Time: k.created}, Fingerprint: k.fingerprint, Name: k.name, ID: k.id,
			Type: k.kind, Tags: s.tagList(k.id)}
		if in.IncludePublicKey {
			i.Public = k.public
		}
		out.Keys = append(out.Keys, i)
	}
	return out, nil
}

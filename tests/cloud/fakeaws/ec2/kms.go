package ec2

import (
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// Key is a customer managed KMS key for volumes. Its key policy lets the account's IAM policies decide, as the default
// key policy does.
type Key struct {
	ARN string // arn:aws:kms:us-west-2:123456789012:key/…
	// Services are the services whose service-linked roles the key policy names, such as autoscaling.amazonaws.com. The
	// IAM policies of these roles cannot be extended.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
	Services []string
}

// AddKey adds a KMS key, or replaces the key with this ARN. It takes the cloud's lock.
func (s *Service) AddKey(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[k.ARN] = k
}

// key finds a key by its ARN or its ID.
func (s *Service) key(name string) (Key, bool) {
	for arn, k := range s.keys {
		if arn == name || strings.HasSuffix(arn, ":key/"+name) {
			return k, true
		}
	}
	return Key{}, false
}

// volumeKeyActions are the KMS actions that a caller needs to launch an instance with a volume that a key encrypts. The
// account's default key for EBS needs none of these actions.
// https://docs.aws.amazon.com/ebs/latest/userguide/ebs-encryption-requirements.html
var volumeKeyActions = []string{"kms:CreateGrant", "kms:Decrypt", "kms:DescribeKey",
	"kms:GenerateDataKeyWithoutPlaintext"}

// mayEncrypt reports whether the KMS keys of a launch exist and may be used. For a launch by a service, c is nil. EC2
// checks the keys only after it has answered the request. If EC2 refuses a key, the pending instance is terminated.
// https://repost.aws/knowledge-center/kms-iam-ec2-permission
func (s *Service) mayEncrypt(c *wire.Call, l *launch) bool {
	for _, d := range l.disks {
		if !s.mayUseKey(c, d.kmsKey, l.by, volumeKeyActions...) {
			return false
		}
	}
	return true
}

// mayUseKey reports whether a KMS key exists and may be used for all actions, by the caller or by an AWS service.
func (s *Service) mayUseKey(c *wire.Call, name, by string, actions ...string) bool {
	if name == "" || strings.HasSuffix(name, "alias/aws/ebs") {
		return true
	}
	key, ok := s.key(name)
	if ok && by != "" {
		ok = slices.Contains(key.Services, by)
	} else if ok {
		for _, action := range actions {
			context := policy.Context{"kms:ViaService": {"ec2." + s.cfg.Region + ".amazonaws.com"},
				"kms:CallerAccount": {s.cfg.Account}}
			if action == "kms:CreateGrant" {
				context["kms:GrantIsForAWSResource"] = []string{"true"}
			}
			if !c.Permits(action, key.ARN, context) {
				return false
			}
		}
	}
	return ok
}

package s3

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

func invalidArgument(format string, args ...any) error {
	return wire.Errorf(http.StatusBadRequest, "InvalidArgument", format, args...)
}

// In the documents of bucket settings, all values are strings. So an answer repeats the exact text of the request.

type versioning struct {
	XMLName xml.Name `xml:"VersioningConfiguration"`
	Status  string   `xml:",omitempty"`
}

func (v *versioning) check() error {
	if v.Status != "Enabled" && v.Status != "Suspended" {
		return wire.Errorf(http.StatusBadRequest, "IllegalVersioningConfigurationException",
			"The Versioning element must be specified")
	}
	return nil
}

type encryptionConfiguration struct {
	XMLName xml.Name         `xml:"ServerSideEncryptionConfiguration"`
	Rules   []encryptionRule `xml:"Rule"`
}

type encryptionRule struct {
	Default          *encryptionDefault `xml:"ApplyServerSideEncryptionByDefault"`
	BucketKeyEnabled string             `xml:",omitempty"`
}

type encryptionDefault struct {
	SSEAlgorithm   string
	KMSMasterKeyID string `xml:",omitempty"`
}

// ownEncryption returns the default encryption of buckets since January 2023.
func ownEncryption() *encryptionConfiguration {
	return &encryptionConfiguration{Rules: []encryptionRule{{Default: &encryptionDefault{SSEAlgorithm: "AES256"},
		BucketKeyEnabled: "false"}}}
}

func (c *encryptionConfiguration) check() error {
	if len(c.Rules) != 1 || c.Rules[0].Default == nil || !slices.Contains([]string{"", "true", "false"},
		c.Rules[0].BucketKeyEnabled) {
		return malformed()
	}
	switch d := c.Rules[0].Default; {
	case d.SSEAlgorithm != "AES256" && d.SSEAlgorithm != "aws:kms" && d.SSEAlgorithm != "aws:kms:dsse":
		return malformed()
	case d.SSEAlgorithm == "AES256" && d.KMSMasterKeyID != "":
		return invalidArgument(
			"a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms or aws:kms:dsse")
	}
	if c.Rules[0].BucketKeyEnabled == "" {
		c.Rules[0].BucketKeyEnabled = "false"
	}
	return nil
}

type publicAccessBlock struct {
	XMLName               xml.Name `xml:"PublicAccessBlockConfiguration"`
	BlockPublicAcls       string   `xml:",omitempty"`
	IgnorePublicAcls      string   `xml:",omitempty"`
	BlockPublicPolicy     string   `xml:",omitempty"`
	RestrictPublicBuckets string   `xml:",omitempty"`
}

func (p *publicAccessBlock) check() error {
	for _, v := range []*string{&p.BlockPublicAcls, &p.IgnorePublicAcls, &p.BlockPublicPolicy,
		&p.RestrictPublicBuckets} {
		switch *v {
		case "":
			*v = "false"
		case "true", "false":
		default:
			return malformed()
		}
	}
	return nil
}

// ownerEnforced is the ownership setting that disables ACLs.
const ownerEnforced = "BucketOwnerEnforced"

type ownershipControls struct {
	XMLName xml.Name        `xml:"OwnershipControls"`
	Rules   []ownershipRule `xml:"Rule"`
}

type ownershipRule struct{ ObjectOwnership string }

func (o *ownershipControls) check() error {
	if len(o.Rules) != 1 || !slices.Contains([]string{ownerEnforced, "BucketOwnerPreferred", "ObjectWriter"},
		o.Rules[0].ObjectOwnership) {
		return malformed()
	}
	return nil
}

type tagging struct {
	XMLName xml.Name `xml:"Tagging"`
	TagSet  tagSet
}

type tagSet struct {
	Tags []tag `xml:"Tag"`
}

type tag struct{ Key, Value string }

func (t *tagging) check() error { return t.TagSet.check(50) }

func (t *tagSet) check(limit int) error {
	if len(t.Tags) > limit {
		return wire.Errorf(http.StatusBadRequest, "BadRequest", "Object tags cannot be greater than %d", limit)
	}
	seen := map[string]bool{}
	for _, tag := range t.Tags {
		switch {
		case tag.Key == "" || len(tag.Key) > 128 || len(tag.Value) > 256:
			return wire.Errorf(http.StatusBadRequest, "InvalidTag",
				"The TagKey or TagValue you have provided is invalid")
		case strings.HasPrefix(tag.Key, "aws:"):
			return wire.Errorf(http.StatusBadRequest, "InvalidTag", "System tags cannot be added/updated by requester")
		case seen[tag.Key]:
			return wire.Errorf(http.StatusBadRequest, "InvalidTag", "Cannot provide multiple Tags with the same key")
		}
		seen[tag.Key] = true
	}
	return nil
}

type lifecycle struct {
	XMLName xml.Name        `xml:"LifecycleConfiguration"`
	Rules   []lifecycleRule `xml:"Rule"`
}

type lifecycleRule struct {
	ID          string           `xml:",omitempty"`
	Filter      *lifecycleFilter `xml:",omitempty"`
	Prefix      *string          `xml:",omitempty"`
	Status      string           ``
	Expiration  *lifecycleDays   `xml:",omitempty"`
	Noncurrent  *noncurrent      `xml:"NoncurrentVersionExpiration,omitempty"`
	Transitions []lifecycleDays  `xml:"Transition"`
	Older       []noncurrent     `xml:"NoncurrentVersionTransition"`
	Abort       *abortIncomplete `xml:"AbortIncompleteMultipartUpload,omitempty"`
}

type lifecycleFilter struct {
	And                   *lifecycleAnd `xml:",omitempty"`
	Prefix                *string       `xml:",omitempty"`
	Tag                   *tag          `xml:",omitempty"`
	ObjectSizeGreaterThan string        `xml:",omitempty"`
	ObjectSizeLessThan    string        `xml:",omitempty"`
}

type lifecycleAnd struct {
	Prefix                *string `xml:",omitempty"`
	Tags                  []tag   `xml:"Tag"`
	ObjectSizeGreaterThan string  `xml:",omitempty"`
	ObjectSizeLessThan    string  `xml:",omitempty"`
}

type lifecycleDays struct {
	Date                      string `xml:",omitempty"`
	Days                      string `xml:",omitempty"`
	StorageClass              string `xml:",omitempty"`
	ExpiredObjectDeleteMarker string `xml:",omitempty"`
}

type noncurrent struct {
	NoncurrentDays          string `xml:",omitempty"`
	NewerNoncurrentVersions string `xml:",omitempty"`
	StorageClass            string `xml:",omitempty"`
}

type abortIncomplete struct{ DaysAfterInitiation string }

// check refuses invalid rules. Like S3, it gives an ID to each rule that has none.
func (l *lifecycle) check() error {
	if len(l.Rules) == 0 || len(l.Rules) > 1000 {
		return malformed()
	}
	seen := map[string]bool{}
	for i := range l.Rules {
		r := &l.Rules[i]
		if r.ID == "" {
			r.ID = uuid.NewString()
		}
		switch {
		case r.Status != "Enabled" && r.Status != "Disabled", (r.Filter == nil) == (r.Prefix == nil):
			return malformed()
		case len(r.ID) > 255:
			return invalidArgument("ID length should not exceed allowed limit of 255")
		case seen[r.ID]:
			return invalidArgument("Rule ID must be unique. Found same ID for more than one rule")
		case r.Expiration == nil && r.Noncurrent == nil && len(r.Transitions) == 0 && len(r.Older) == 0 &&
			r.Abort == nil:
			return wire.Errorf(http.StatusBadRequest, "InvalidRequest",
				"At least one action needs to be specified in a rule")
		}
		seen[r.ID] = true
		if err := r.checkDays(); err != nil {
			return err
		}
	}
	return nil
}

func (r *lifecycleRule) checkDays() error {
	var days []string
	if e := r.Expiration; e != nil {
		if (e.Days != "") == (e.Date != "") && e.ExpiredObjectDeleteMarker == "" || e.StorageClass != "" {
			return malformed()
		}
		days = append(days, e.Days)
	}
	if r.Noncurrent != nil {
		if r.Noncurrent.NoncurrentDays == "" {
			return malformed()
		}
		days = append(days, r.Noncurrent.NoncurrentDays, r.Noncurrent.NewerNoncurrentVersions)
	}
	if r.Abort != nil {
		days = append(days, r.Abort.DaysAfterInitiation)
	}
	for _, d := range days {
		if n, err := strconv.Atoi(d); d != "" && (err != nil || n < 1) {
			return invalidArgument("'%s' in the rule '%s' must be a positive integer", d, r.ID)
		}
	}
	return nil
}

// logging, accelerate and requestPayment are settings that no bucket of this fake has.
type logging struct {
	XMLName xml.Name `xml:"BucketLoggingStatus"`
}

type accelerate struct {
	XMLName xml.Name `xml:"AccelerateConfiguration"`
}

type requestPayment struct {
	XMLName xml.Name `xml:"RequestPaymentConfiguration"`
	Payer   string
}

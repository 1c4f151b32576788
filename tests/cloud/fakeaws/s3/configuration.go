package s3

import (
	"net/http"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxDocument is the largest accepted configuration.
const maxDocument = 1 << 20

// checked is a configuration that validates itself.
type checked interface{ check() error }

// part is one configuration of a bucket. Clients read and write it as an XML document.
type part struct {
	name          string // name in the query
	noun          string // GetBucketX, PutBucketX, DeleteBucketX
	get, put      string // IAM actions, which do not always have the same name
	fresh         func() checked
	absent        func() error // error if it is not set; nil: other is returned
	other         func() any   // value if it is not set
	deletable     bool
	putStatus     int                           // HTTP status of put; 0 means 200
	store         func(*request, checked) error // custom storing of the document
	alongside     func(*request)                // adds headers to the answers of get and put
	withoutBucket bool                          // the operation is GetX, without "Bucket"
}

func absent(code, message string) func() error {
	return func() error { return wire.Errorf(http.StatusNotFound, code, "%s", message) }
}

// parts lists all configurations except the policy and the ACLs. Those need operations of their own.
func parts() []part {
	return []part{
		{name: "versioning", noun: "Versioning", get: "GetBucketVersioning", put: "PutBucketVersioning",
			fresh: func() checked {
				return new(versioning)
			},
			other: func() any { return new(versioning) }, store: storeVersioning},
		{name: "encryption", noun: "Encryption", get: "GetEncryptionConfiguration", put: "PutEncryptionConfiguration",
			fresh: func() checked {
				return new(encryptionConfiguration)
			},
			other: func() any { return ownEncryption() }, deletable: true},
		{name: "publicAccessBlock", noun: "PublicAccessBlock", withoutBucket: true, get: "GetBucketPublicAccessBlock",
			put:   "PutBucketPublicAccessBlock",
			fresh: func() checked { return new(publicAccessBlock) }, deletable: true,
			absent: absent("NoSuchPublicAccessBlockConfiguration",
				"The public access block configuration was not found")},
		{name: "ownershipControls", noun: "OwnershipControls", get: "GetBucketOwnershipControls",
			put:   "PutBucketOwnershipControls",
			fresh: func() checked { return new(ownershipControls) }, deletable: true,
			absent: absent("OwnershipControlsNotFoundError", "The bucket ownership controls were not found")},
		{name: "tagging", noun: "Tagging", get: "GetBucketTagging", put: "PutBucketTagging", fresh: func() checked {
			return new(tagging)
		},
			putStatus: http.StatusNoContent, absent: absent("NoSuchTagSet", "The TagSet does not exist")},
		{name: "lifecycle", noun: "LifecycleConfiguration", get: "GetLifecycleConfiguration",
			put: "PutLifecycleConfiguration", fresh: func() checked {
				return new(lifecycle)
			},
			deletable: true, absent: absent("NoSuchLifecycleConfiguration",
				"The lifecycle configuration does not exist"), store: storeLifecycle, alongside: writeTransition},
		{name: "logging", noun: "Logging", get: "GetBucketLogging", other: func() any { return new(logging) }},
		{name: "cors", noun: "Cors", get: "GetBucketCORS",
			absent: absent("NoSuchCORSConfiguration", "The CORS configuration does not exist")},
		{name: "website", noun: "Website", get: "GetBucketWebsite",
			absent: absent("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration")},
		{name: "accelerate", noun: "AccelerateConfiguration", get: "GetAccelerateConfiguration",
			other: func() any { return new(accelerate) }},
		{name: "requestPayment", noun: "RequestPayment", get: "GetBucketRequestPayment",
			other: func() any { return &requestPayment{Payer: "BucketOwner"} }},
		{name: "replication", noun: "Replication", get: "GetReplicationConfiguration",
			absent: absent("ReplicationConfigurationNotFoundError", "The replication configuration was not found")},
		{name: "object-lock", noun: "ObjectLockConfiguration", withoutBucket: true,
			get: "GetBucketObjectLockConfiguration",
			absent: absent("ObjectLockConfigurationNotFoundError",
				"Object Lock configuration does not exist for this bucket")},
	}
}

func configurationOperations() []operation {
	var all []operation
	for _, p := range parts() {
		noun := "Bucket" + p.noun
		if p.withoutBucket {
			noun = p.noun
		}
		needs := []string{p.name}
		all = append(all, operation{name: "Get" + noun, method: "GET", level: onBucket, needs: needs, action: p.get,
			serve: p.writeConfiguration})
		if p.fresh == nil {
			continue
		}
		all = append(all, operation{name: "Put" + noun, method: "PUT", level: onBucket, needs: needs, action: p.put,
			serve: p.set})
		if p.deletable {
			name := "Delete" + noun
			if p.name == "lifecycle" {
				name = "DeleteBucketLifecycle"
			}
			all = append(all, operation{name: name, method: "DELETE", level: onBucket, needs: needs, action: p.put,
				serve: p.remove})
		}
	}
	return append(all, policyOperations()...)
}

func (p part) writeConfiguration(q *request) error {
	q.s.mu.Lock()
	document, ok := q.config.documents[p.name]
	q.s.mu.Unlock()
	if p.alongside != nil && ok {
		p.alongside(q)
	}
	switch {
	case ok:
		return q.writeXML(document)
	case p.absent != nil:
		return p.absent()
	}
	return q.writeXML(p.other())
}

func (p part) set(q *request) error {
	q.Request.Body = http.MaxBytesReader(q.w, q.Request.Body, maxDocument)
	body, err := q.body()
	if err != nil {
		return err
	}
	document := p.fresh()
	if err := decode(body, document); err != nil {
		return err
	}
	if err := document.check(); err != nil {
		return err
	}
	if p.store != nil {
		if err := p.store(q, document); err != nil {
			return err
		}
	}
	q.s.mu.Lock()
	q.config.documents[p.name] = document
	q.s.mu.Unlock()
	if p.alongside != nil {
		p.alongside(q)
	}
	q.w.WriteHeader(max(p.putStatus, http.StatusOK))
	return nil
}

func (p part) remove(q *request) error {
	q.s.mu.Lock()
	delete(q.config.documents, p.name)
	q.s.mu.Unlock()
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// storeVersioning starts the list of versions when versioning is enabled for the first time.
func storeVersioning(q *request, document checked) error {
	unlock := q.s.locks.all()
	defer unlock()
	q.s.mu.Lock()
	status := q.config.status()
	q.s.mu.Unlock()
	if status == "" {
		if err := q.index(); err != nil {
			return err
		}
	}
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.config.documents["versioning"] = document // under the locks of all objects
	return nil
}

// The header that sets the minimum size of objects that move to other storage classes, and the header's default value.
const (
	transitionHeader  = "X-Amz-Transition-Default-Minimum-Object-Size"
	transitionDefault = "all_storage_classes_128K"
)

func storeLifecycle(q *request, _ checked) error {
	transition := q.Request.Header.Get(transitionHeader)
	switch transition {
	case "":
		transition = transitionDefault
	case transitionDefault, "varies_by_storage_class":
	default:
		return wire.Errorf(http.StatusBadRequest, "InvalidRequest", "The value of %s is not valid", transitionHeader)
	}
	q.s.mu.Lock()
	q.config.transition = transition
	q.s.mu.Unlock()
	return nil
}

func writeTransition(q *request) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.w.Header().Set(transitionHeader, q.config.transition)
}

// defaultEncryption returns the bucket's encryption of new objects. The caller holds the lock.
func (b *bucket) defaultEncryption() encryption {
	if c, ok := b.documents["encryption"].(*encryptionConfiguration); ok {
		d := c.Rules[0].Default
		return encryption{algorithm: d.SSEAlgorithm, key: d.KMSMasterKeyID, bucketKey: c.Rules[0].BucketKeyEnabled}
	}
	return encryption{algorithm: "AES256"}
}

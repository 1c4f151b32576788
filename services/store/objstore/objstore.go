// Package objstore owns the interface to object storage for all other packages. It has four operations: get with a
// token, list by prefix, conditional put, and delete.
//
// Invariant: a conditional Put takes effect at most once for each state of the object. The caller always knows which of
// three results a Put has:
//
//   - The Put took effect (nil).
//   - The Put did not take effect and never will (ErrConflict and every other definite error).
//   - The result is not known yet (ErrIndeterminate). Settle turns it into one of the other two.
//
// Back ends are sub-packages, so that importing this package links no SDK. The package objstore/open selects a back end
// by name. All back ends run the conformance suite in objstoretest.
package objstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/endpoints"
)

// Token is the opaque version of an object: an ETag or a generation. Tokens may only be compared for equality, and only
// with tokens of the same key in the same store. A token may be a content hash, so that the same bytes may get the same
// token again. Every object that is compared and swapped must therefore contain a counter.
type Token string

// Object is one object as read from the store. The caller owns Body.
type Object struct {
	Key   string
	Body  []byte
	Token Token
}

// Entry is one object in a listing. Modified is a time of the store's clock, so use it only for ages of hours or more.
type Entry struct {
	Key      string
	Token    Token
	Size     int64
	Modified time.Time
}

// Store is a bucket. All methods are safe for concurrent use. Errors wrap one of the errors below and name the back
// end, the call and the key. Test them with errors.Is. A call with a context that has already ended fails with the
// context's error and has no effect.
type Store interface {
	// Get returns the object as of some moment during the call. Every Put that was acknowledged before the call has
	// taken effect at that moment. Get fails with ErrNotFound if there is no object. Any other error does not show
	// whether the object exists.
	Get(ctx context.Context, key string) (Object, error)

	// Put atomically checks cond and replaces the whole object, and returns the new token. The store keeps no reference
	// to body. A conditional put is one attempt: no lower layer repeats it.
	//
	// ErrConflict means that the condition did not hold and nothing was written. ErrIndeterminate means that the write
	// may have happened, may happen later, or may never happen. Every timeout, lost connection, cancellation or server
	// fault after the request was sent is ErrIndeterminate. Any other error is definite: nothing was written.
	Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error)

	// Delete removes the object, regardless of its current version. A missing object is not an error. After any error
	// the object may be gone, or may be removed later. There is no conditional delete, because some real stores ignore
	// the condition. An object that must not reappear is replaced by a tombstone instead.
	Delete(ctx context.Context, key string) error

	// List returns all objects with keys that start with prefix, from all pages, sorted by key in byte order. The list
	// reflects the puts and deletes that were acknowledged to this process before the call. Only the store mem violates
	// this rule, when a test makes its lists stale. Concurrent puts and deletes may or may not be included.
	List(ctx context.Context, prefix string) ([]Entry, error)
}

// Errors that a Store's errors wrap.
var (
	// ErrNotFound means that the object does not exist. A missing bucket or a refused read is a different error.
	ErrNotFound = errors.New("object not found")
	// ErrConflict means that the condition of a Put did not hold (HTTP status 404, 409 or 412). Nothing was written.
	ErrConflict = errors.New("object changed or exists: the condition does not hold")
	// ErrIndeterminate means that a Put may or may not have happened, and may still take effect later.
	ErrIndeterminate = errors.New("result of the write is unknown")
	// ErrNotSent is an ErrIndeterminate, so that callers try again. It means that no attempt reached the store.
	ErrNotSent error = notSent{}
	// ErrInvalid means that the request is malformed, because of a bad key or condition, and was not sent.
	ErrInvalid = errors.New("invalid request")
	// ErrUnconditional means that the store does not honor conditional puts (see Probe).
	ErrUnconditional = errors.New("bucket does not honour conditional writes")
)

// Condition defines when a Put may take effect. Make it with Always, IfAbsent or IfToken. Conditions are comparable.
// The zero Condition is invalid, so that a missing condition cannot overwrite an object.
type Condition struct {
	kind  conditionKind
	token Token
}

type conditionKind uint8

const (
	always conditionKind = iota + 1
	ifAbsent
	ifToken
)

// Always returns a condition that always holds.
func Always() Condition { return Condition{kind: always} }

// IfAbsent returns a condition that holds if there is no object under the key.
func IfAbsent() Condition { return Condition{kind: ifAbsent} }

// IfToken returns a condition that holds if there is an object with version t.
func IfToken(t Token) Condition { return Condition{kind: ifToken, token: t} }

// Conditional reports whether the condition can fail.
func (c Condition) Conditional() bool { return c.kind != always }

// Absent reports whether the condition is IfAbsent.
func (c Condition) Absent() bool { return c.kind == ifAbsent }

// Token returns the token of an IfToken condition. ok is false for other conditions.
func (c Condition) Token() (t Token, ok bool) { return c.token, c.kind == ifToken }

// Holds reports whether the condition holds for an object with the given token, or for a missing object.
func (c Condition) Holds(current Token, exists bool) bool {
	switch c.kind {
	case always:
		return true
	case ifAbsent:
		return !exists
	case ifToken:
		return exists && current == c.token
	}
	return false
}

func (c Condition) String() string {
	switch c.kind {
	case always:
		return "always"
	case ifAbsent:
		return "if absent"
	case ifToken:
		return fmt.Sprintf("if token %q", string(c.token))
	}
	return "invalid condition"
}

// maxKey is the maximum size of a key in bytes. It is the smallest limit of the back ends.
const maxKey = 1024

// ValidateKey returns an error that wraps ErrInvalid if a key is not valid. All back ends accept the same
// keys. A key is 1 to 1024 bytes of UTF-8 without control characters or backslashes. Its segments
// between slashes are 1 to 200 bytes, and no segment is "." or "..".
func ValidateKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: empty key", ErrInvalid)
	case len(key) > maxKey:
		return fmt.Errorf("%w: key of %d bytes, at most %d are allowed", ErrInvalid, len(key), maxKey)
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: key is not UTF-8", ErrInvalid)
	case strings.ContainsFunc(key, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }):
		return fmt.Errorf("%w: key holds a control character or a backslash", ErrInvalid)
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch {
		case segment == "" || segment == "." || segment == "..":
			return fmt.Errorf("%w: key has an empty, . or .. segment", ErrInvalid)
		case len(segment) > 200:
			return fmt.Errorf("%w: key has a segment of %d bytes, at most 200 are allowed", ErrInvalid, len(segment))
		}
	}
	return nil
}

// ValidatePut checks the arguments of a Put. Back ends call it first.
func ValidatePut(key string, cond Condition) error {
	if cond.kind == 0 || cond == IfToken("") {
		return fmt.Errorf("%w: condition without a kind or token", ErrInvalid)
	}
	return ValidateKey(key)
}

// Location is the location of a bucket: the "storage" of a configuration, or the flags of a program.
type Location struct {
	// Provider is the name of the back end.
	Provider string
	// Bucket is the name of the bucket. For the back end "file" it is a directory.
	Bucket string
	// Prefix starts all keys. It may be empty.
	Prefix string
	// Region, Endpoint and PathStyle are for back ends in a cloud. Unset values come from the environment.
	Region    string
	Endpoint  string
	PathStyle bool
	// Profile is a profile in the shared configuration files of the cloud's tools. Only some back ends have it and the
	// fields below: see [Backend.HasRoles].
	Profile string
	// AssumeRole is a role that the credentials assume. Optional.
	AssumeRole cloud.Role
	// Encrypt asks the store to encrypt each object with its own keys. KMSKeyID asks it to encrypt each object with a
	// key of the cloud's service for keys. Without both, the bucket's default applies, but the bucket's policy may
	// demand the request.
	Encrypt  bool
	KMSKeyID string
	// Federation gives servers of another cloud access to the bucket. Only some back ends have it. Optional.
	Federation cloud.Federation
}

// HasRoles reports whether a field is set that only back ends with [Backend.HasRoles] have.
func (l Location) HasRoles() bool {
	return l.Profile != "" || l.AssumeRole != (cloud.Role{}) || l.Encrypt || l.KMSKeyID != ""
}

// Validate refuses prefixes that no key may have, and names of buckets and endpoints that no store in a cloud has.
func (l Location) Validate() error {
	if err := ValidatePrefix(l.Prefix); err != nil {
		return err
	}
	if l.Provider == "file" {
		return nil
	}
	return cmp.Or(endpoints.ValidateBucket(l.Bucket), endpoints.ValidateStore(l.Endpoint, l.Bucket))
}

// Backend describes a kind of object store. Each sub-package has one, and the package objstore/open lists all of them.
type Backend struct {
	// Name is the value of cluster.storage.provider and of the programs' flags.
	Name string
	// Environment lists the environment variables and credentials that the back end reads, for help texts. Optional.
	Environment string
	// HasRoles is true if the back end knows Profile, AssumeRole, Encrypt and KMSKeyID of a [Location].
	HasRoles bool
	// Open opens a bucket without its prefix. It does not connect to the store.
	Open func(ctx context.Context, at Location) (Store, error)
	// Endpoint returns the URL of the store that Open connects to, in one spelling. It is empty if the names of buckets
	// are unique in all stores that Open connects to. A back end without this function has no endpoint. Optional.
	Endpoint func(ctx context.Context, at Location) (string, error)
	// Hint returns what a person should do about an error of the store, or "" if that is unknown. Optional.
	Hint func(err error) string
}

// notSent is the type of ErrNotSent.
type notSent struct{}

func (notSent) Error() string { return "nothing was written, because the store was not reached" }

// Is makes ErrNotSent an ErrIndeterminate for programs: they try again.
func (notSent) Is(target error) bool { return target == ErrIndeterminate }

// notConnected reports whether err shows that no connection to the store was made. If a request had one attempt, such
// an error proves that the request was not sent.
func notConnected(err error) bool {
	var op *net.OpError
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) ||
		errors.Is(err, http.ErrSchemeMismatch)
}

// PutError returns the error of a back end for a put that failed with err. sent means that a request was sent, and
// status is the status of the answer, or 0 if there was none.
func PutError(err error, cond Condition, sent bool, status int) error {
	kind := ErrIndeterminate
	switch {
	case !sent: // no credentials, no endpoint, or an ended context
		return err
	case cond.Conditional() && notConnected(err): // a conditional put has one attempt
		kind = ErrNotSent
	case cond.Conditional() && (status == http.StatusPreconditionFailed || status == http.StatusConflict):
		kind = ErrConflict
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests:
		// The store did not execute the put, because it timed out or is overloaded. With an indeterminate error, the
		// caller tries again.
	case 300 <= status && status < 500:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// NetworkHint returns what a person should do about an error of the network or of the person's own interruption, or ""
// if err is neither.
func NetworkHint(err error) string {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Sprintf("no host has the name %s: check the endpoint, the region and this machine's DNS", name.Name)
	case errors.As(err, &name):
		return fmt.Sprintf("the name %s was not resolved: check this machine's DNS", name.Name)
	case errors.As(err, &certificate):
		return "the store's certificate is not trusted here: check the endpoint's host name, this machine's clock " +
			"and " +
			"its CA certificates"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "the endpoint does not speak TLS: if it is meant to be without TLS, write http:// instead of https://"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at that address: start the store, or correct the endpoint's host and port"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to that address: check this machine's network"
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return "no connection was made in time: check the endpoint, firewalls and this machine's network"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the store or a proxy in between closed the connection: try again"
	}
	return ""
}

// Interrupted reports whether err is only that the caller gave up, for example by Ctrl-C.
func Interrupted(err error) bool { return errors.Is(err, context.Canceled) }

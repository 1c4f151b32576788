// Package objstore owns the narrow view that everything has of object storage: get with a token, list by prefix, put
// under a condition, delete.
//
// Invariant: a conditional Put takes effect at most once for each state of the object, and its caller always knows
// which of three things happened: it took effect (nil), it did not and never will (ErrConflict and every other definite
// error), or nobody can say yet (ErrIndeterminate). Settle turns the third into one of the others.
//
// Back ends are sub-packages (mem, file, s3), so that importing this package links no SDK; package open picks one by
// name. All of them run the conformance suite in objstoretest.
package objstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Token is the opaque version of an object: an ETag, a generation. Tokens are compared for equality only, and only with
// tokens of the same key in the same store. A token may be a content hash (S3 ETags are MD5 sums): the same bytes
// written again may have the same token, so whatever is compared and swapped carries a counter of its own.
type Token string

// Object is one object as it was read. The caller owns Body.
type Object struct {
	Key   string
	Body  []byte
	Token Token
}

// Entry is one object in a listing. Modified is the store's clock, good for ages of hours and nothing finer.
type Entry struct {
	Key      string
	Token    Token
	Size     int64
	Modified time.Time
}

// Store is a bucket. All methods may be called concurrently. Errors are wrapped with the back end, the call and the
// key; test them with errors.Is. A request whose context has ended before it starts fails with the context's error, and
// nothing happened.
type Store interface {
	// Get returns the object as of some moment during the call: every Put that was acknowledged before is seen.
	// ErrNotFound if there is none; any other error says nothing about whether it exists.
	Get(ctx context.Context, key string) (Object, error)

	// Put replaces the whole object if cond holds, atomically with the check, and returns the new token. The store
	// keeps no reference to body. A conditional put is one attempt: no layer below repeats it.
	//
	// ErrConflict: the condition did not hold, nothing was written. ErrIndeterminate: the write may have happened, may
	// happen later, or never; every time-out, lost connection, cancellation or server fault after the request went out
	// is one. Any other error is definite: nothing was written.
	Put(ctx context.Context, key string, body []byte, cond Condition) (Token, error)

	// Delete removes the object whatever its version; a missing one is no error. After any error the object may be
	// gone, or go later. There is no conditional delete: real stores were seen to ignore the condition. What must not
	// come back is replaced by a tombstone instead.
	Delete(ctx context.Context, key string) error

	// List returns all objects whose key starts with prefix, all pages of them, sorted by key in byte order. Puts and
	// deletes acknowledged to this process before the call are seen where the store promises that (all but mem with
	// stale lists); concurrent ones may or may not be.
	List(ctx context.Context, prefix string) ([]Entry, error)
}

// What errors of a Store may be.
var (
	// ErrNotFound means that there is no such object. A missing bucket or a refused read is another error, never this.
	ErrNotFound = errors.New("object not found")
	// ErrConflict means that the condition of a Put did not hold (stores say 404, 409 or 412). Nothing was written.
	ErrConflict = errors.New("object changed or exists: the condition does not hold")
	// ErrIndeterminate means that a Put may or may not have happened, and may still land later.
	ErrIndeterminate = errors.New("result of the write is unknown")
	// ErrInvalid means that the request is malformed and was not sent: a bad key, a bad condition.
	ErrInvalid = errors.New("invalid request")
	// ErrUnconditional means that the store does not honour conditional puts (see Probe).
	ErrUnconditional = errors.New("bucket does not honour conditional writes")
)

// Condition says when a Put may take effect. It is made by Always, IfAbsent or IfToken and comparable; the zero
// Condition is invalid, so that a forgotten one cannot overwrite anything.
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

// Always holds whatever is there.
func Always() Condition { return Condition{kind: always} }

// IfAbsent holds if there is no object under the key.
func IfAbsent() Condition { return Condition{kind: ifAbsent} }

// IfToken holds if there is an object and its version is t.
func IfToken(t Token) Condition { return Condition{kind: ifToken, token: t} }

// Conditional says whether the condition can fail to hold.
func (c Condition) Conditional() bool { return c.kind != always }

// Absent says whether the condition is IfAbsent.
func (c Condition) Absent() bool { return c.kind == ifAbsent }

// Token returns the token of an IfToken condition.
func (c Condition) Token() (t Token, ok bool) { return c.token, c.kind == ifToken }

// Holds evaluates the condition against an object that has the given token, or does not exist.
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

// maxKey is S3's limit in bytes; GCS has the same.
const maxKey = 1024

// ValidateKey says, wrapping ErrInvalid, what makes a key unfit for some back end: S3 and a directory of files accept
// the same keys. A key is 1 to 1024 bytes of UTF-8 without control characters or backslashes; its segments between
// slashes are 1 to 200 bytes, and none is "." or "..".
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

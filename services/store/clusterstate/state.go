// Package clusterstate is the one typed reader and writer of everything that is kept in the bucket. It defines the key,
// the format and the write condition of every object.
//
// Clock, randomness, goroutines and the pauses between retries are injected, so that a single-threaded simulator can
// run the package.
//
// Invariant: every write but a delete is conditional on the version that the writer saw. A write returns only when it
// is certain whether it succeeded, or when its context ends. A document that cannot be read is an error, never
// "absent".
package clusterstate

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/highwater"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// parallel is how many objects are read at a time: at 20 ms each, a shard of 5,000 instances is read in 0.8 s.
const parallel = 128

// Options configure [New]. The stores must already apply the cluster's prefix. A field that a program does not use may
// be zero.
type Options struct {
	// Cluster contains the cluster's documents, and Shard those of the shard. Both may be the same store.
	Cluster, Shard objstore.Store
	// Elsewhere contains the documents of shards that are neither in Cluster nor in Shard, by the names of the shards.
	// Only a rotation of the CA, which concerns all shards, needs it.
	Elsewhere map[string]objstore.Store
	ClusterID string
	ShardID   string // empty for programs that belong to no shard
	// Secrets holds the CA's key. It is needed to read and write signed documents.
	Secrets secretstore.Store
	// Marks contains the highest version of each document that this process has seen. Several States of one cluster may
	// use the same Marks. Nil means Marks for this State only.
	Marks *highwater.Marks
	// Now and Rand default to the machine's clock and crypto/rand.
	Now  func() time.Time
	Rand io.Reader
	// Sleep waits between attempts of a write with an unknown result; nil waits on the real clock.
	Sleep func(ctx context.Context, d time.Duration) error
	// ForEach calls fn for 0..n-1, at most limit at a time, and returns the first error after all started calls have
	// returned. Nil: the calls run one at a time.
	ForEach func(ctx context.Context, n, limit int, fn func(ctx context.Context, i int) error) error
}

// State reads and writes the documents of one cluster and one of its shards. It remembers nothing but the CA and the
// trust bundle, and may be used concurrently. Errors match those of objstore and secretstore, such as
// objstore.ErrNotFound.
type State struct {
	options Options
	known   atomic.Pointer[trust] // the last that was read; nil if there was no CA
}

// New returns a State. It does nothing yet.
func New(options Options) *State {
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.Rand == nil {
		options.Rand = rand.Reader
	}
	if options.Marks == nil {
		options.Marks = &highwater.Marks{}
	}
	if options.ForEach == nil {
		options.ForEach = oneByOne
	}
	return &State{options: options}
}

func oneByOne(ctx context.Context, n, _ int, fn func(context.Context, int) error) error {
	for i := range n {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// ErrForeign means that a document belongs to another cluster, shard, tenant or ID than its key says. The prefix may be
// wrong, or someone copied the object.
var ErrForeign = errors.New("it belongs elsewhere")

// ErrDamaged means that an object was read and its content is not what belongs there, such as half of a record.
var ErrDamaged = errors.New("it is damaged")

// belongs returns an error unless a document belongs where its key says. "what" is the kind of name, such as tenant.
// The document contains the name "says", and its key the name "want".
func belongs(what, says, want string) error {
	if says != want {
		return fmt.Errorf("%w: its %s is %q, not %q", ErrForeign, what, says, want)
	}
	return nil
}

// explain puts what failed in front of the error that a function returns. The function defers it.
func explain(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// read returns the document under a key, and its token. It returns objstore.ErrNotFound if there is none.
func read[T any](ctx context.Context, store objstore.Store, key string, decode func([]byte) (T, error)) (T,
	objstore.Token, error) {
	var none T
	object, err := store.Get(ctx, key)
	if err != nil {
		return none, "", err
	}
	doc, err := decode(object.Body)
	if err != nil {
		return none, "", err
	}
	return doc, object.Token, nil
}

// readSigned is like read, for a document that a CA of the cluster has signed.
func readSigned[T any](ctx context.Context, s *State, store objstore.Store, key string,
	decode func([]byte) (T, error)) (T, objstore.Token, error) {
	before := s.options.Marks.Highest(key)
	return read(ctx, store, key, func(data []byte) (none T, err error) {
		doc, err := s.openDocument(ctx, key, data, before)
		if err != nil {
			return none, err
		}
		return decode(doc.Content)
	})
}

// unverified returns a decoder for signed documents that does not check their signatures.
func unverified[T any](decode func([]byte) (T, error)) func([]byte) (T, error) {
	return func(data []byte) (none T, err error) {
		content, err := authority.UnverifiedContent(data)
		if err != nil {
			return none, err
		}
		return decode(content)
	}
}

// checked returns a decoder that also checks the document.
func checked[T any](decode func([]byte) (T, error), check func(T) error) func([]byte) (T, error) {
	return func(data []byte) (T, error) {
		doc, err := decode(data)
		if err == nil {
			err = check(doc)
		}
		return doc, err
	}
}

// orDamaged returns a decoder whose errors match [ErrDamaged], unless a newer version of Nstance wrote the object.
func orDamaged[T any](decode func([]byte) (T, error)) func([]byte) (T, error) {
	return func(data []byte) (T, error) {
		doc, err := decode(data)
		if err != nil && !errors.Is(err, record.ErrNewer) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return doc, err
	}
}

// loadSecret reads and parses a secret of the cluster.
func loadSecret[T any](ctx context.Context, s *State, name string, parse func([]byte) (T, error)) (none T,
	err error) {
	secret, err := s.options.Secrets.Get(ctx, name)
	if err != nil {
		return none, err
	}
	return parse(secret.Value.Reveal())
}

// putSecret stores a key as a secret of the cluster.
func (s *State) putSecret(ctx context.Context, name string, key interface{ MarshalSecret() ([]byte, error) },
	cond secretstore.Condition) error {
	secret, err := key.MarshalSecret()
	if err != nil {
		return err
	}
	return s.options.Secrets.Put(ctx, name, secretstore.NewValue(secret), cond)
}

// put writes an object if its present version has the given token ("" for no object). It repeats the write until the
// result is known. put also succeeds if the store already contains the same bytes. If they are a record, an earlier
// call wrote them, because a record contains the name of its writer. For a configuration it does not matter who wrote
// it.
func (s *State) put(ctx context.Context, store objstore.Store, key string, body []byte,
	token objstore.Token) (objstore.Token, error) {
	cond := objstore.IfAbsent()
	if token != "" {
		cond = objstore.IfToken(token)
	}
	newToken, err := objstore.Settle(ctx, store, key, body, cond, s.options.Sleep)
	if errors.Is(err, objstore.ErrConflict) {
		if object, rerr := store.Get(ctx, key); rerr == nil && bytes.Equal(object.Body, body) {
			return object.Token, nil
		}
	}
	return newToken, err
}

// Superseded means that a record was not written because the stored version is not the expected one. It matches
// objstore.ErrConflict.
type Superseded[R any] struct {
	ID ident.ID
	// Record is the present version, and Token is its token. Both are zero if the record does not exist.
	Record R
	Token  objstore.Token
}

type (
	// SupersededError is the error for an instance's record.
	SupersededError = Superseded[record.Instance]
	// SupersededOperatorError is the error for an operator's record.
	SupersededOperatorError = Superseded[record.Operator]
)

func (e *Superseded[R]) Error() string {
	if e.Token == "" {
		return fmt.Sprintf("the record of %s is gone", e.ID)
	}
	text := fmt.Sprintf("another write of the record of %s came first", e.ID)
	if r, ok := any(e.Record).(record.Instance); ok {
		text += fmt.Sprintf(": revision %d of term %d, %s", r.Revision, r.Term, r.State)
	}
	return text
}

// Unwrap returns objstore.ErrConflict.
func (e *Superseded[R]) Unwrap() error { return objstore.ErrConflict }

// superseded returns err or, if it is a conflict, a [*Superseded] with the record that get returns.
func superseded[R any](err error, id ident.ID, get func() (R, objstore.Token, error)) error {
	if !errors.Is(err, objstore.ErrConflict) {
		return err
	}
	there, token, rerr := get()
	if rerr != nil && !errors.Is(rerr, objstore.ErrNotFound) {
		return fmt.Errorf("%w; what is there: %w", err, rerr)
	}
	return &Superseded[R]{ID: id, Record: there, Token: token}
}

// load reads objects, many at a time. It leaves out objects that were deleted since they were listed. The error names
// the first objects that cannot be read, and counts the others.
func load[T any](ctx context.Context, s *State, n int, read func(ctx context.Context, i int) (T, error)) ([]T, error) {
	items, errs := make([]*T, n), make([]error, n)
	err := s.options.ForEach(ctx, n, parallel, func(ctx context.Context, i int) error {
		item, err := read(ctx, i)
		switch {
		case err == nil:
			items[i] = &item
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, objstore.ErrNotFound):
			errs[i] = err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := few(errs); err != nil {
		return nil, err
	}
	var out []T
	for _, item := range items {
		if item != nil {
			out = append(out, *item)
		}
	}
	return out, nil
}

// few joins the first errors and counts the others.
func few(errs []error) error {
	const most = 5
	var kept []error
	more := 0
	for _, err := range errs {
		switch {
		case err == nil:
		case len(kept) < most:
			kept = append(kept, err)
		default:
			more++
		}
	}
	if more > 0 {
		kept = append(kept, fmt.Errorf("and %d more", more))
	}
	return errors.Join(kept...)
}

// checkShard returns an error if the State has no shard.
func (s *State) checkShard() error {
	if err := ident.ValidateName(s.options.ShardID); err != nil {
		return fmt.Errorf("shard: %w", err)
	}
	return nil
}

package admin

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pmezard/go-difflib/difflib"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// pageBucket implements web.Bucket. It only reads.
type pageBucket struct {
	app     *app
	store   objstore.Store
	timeout time.Duration

	mu sync.Mutex
	// compared caches the last comparison for each shard, because it takes long to compare large documents.
	compared map[string]comparison
}

// comparison is the result of [pageBucket.Compare] for two versions of the configuration, and one of the values that
// operators set at run time.
type comparison struct {
	newest, groups objstore.Token
	applied        uint64 // revision
	result         web.Comparison
}

// openPageBucket opens the bucket for the web page. It returns nil if the flags name no bucket.
func (a *app) openPageBucket(ctx context.Context, b *bucketFlags) (web.Bucket, error) {
	if b.location.Bucket == "" {
		return nil, nil //nolint:nilnil // web.Options.Bucket may be nil
	}
	store, _, cancel, err := b.open(ctx, false)
	if err != nil {
		return nil, err
	}
	cancel() // each read has its own timeout
	return &pageBucket{app: a, store: store, timeout: b.timeout, compared: map[string]comparison{}}, nil
}

func (b *pageBucket) state(ctx context.Context, shard string) (*clusterstate.State, context.Context,
	context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	options := clusterstate.Options{Cluster: b.store, Shard: b.store, ShardID: shard, Now: b.app.Now}
	return clusterstate.New(options), ctx, cancel
}

// Lock returns the election lock of a shard that has no leader.
func (b *pageBucket) Lock(ctx context.Context, shard string) web.Lock {
	state, ctx, cancel := b.state(ctx, shard)
	defer cancel()
	lock, _, err := state.ReadLock(ctx, shard)
	view := web.Lock{Holder: lock.LeaderID, Heir: lock.Heir.ID, Term: lock.Term, Lease: lock.Lease()}
	if err == nil {
		if view.RenewedAt = lockWritten(ctx, b.store, shard); view.RenewedAt.IsZero() {
			view.RenewedAt = lock.RenewedAt
		}
	}
	age := b.app.Now().Sub(view.RenewedAt)
	found := b.app.describeLock(lock, err, age)
	if !found.OK {
		found = withReason(found, endOfLeadership(ctx, b.store, shard))
	}
	view.Waits, view.Next = found.Result, found.Next
	if found.OK {
		view.Waits, view.Next = describeHeld(lock, age)
	}
	if server := b.app.checkNewestServer(ctx, state); !server.OK {
		view.Waits += "; the newest server: " + server.Result
		view.Next = server.Next
	}
	return view
}

// describeHeld describes a shard that cannot be reached and whose lock is not stale. It says what the shard waits for,
// and what to do next.
func describeHeld(lock record.Lock, age time.Duration) (waits, next string) {
	if age < lock.Lease() {
		return fmt.Sprintf("the lease of %s has not ended: if it still leads, it cannot be reached from here; if not, "+
			"another server takes over when the lease ends", lock.LeaderID), ""
	}
	return fmt.Sprintf("the lease of %s has ended: another server takes over now, if one runs", lock.LeaderID),
		"start a server of the shard if none runs"
}

// maxDiff is the maximum number of lines that the page shows when it compares two configurations.
const maxDiff = 500

// Compare compares two configurations of a shard: the one that a leader applied last, and the newest one. It does not
// check signatures, because the result is only shown.
func (b *pageBucket) Compare(ctx context.Context, shard string) (web.Comparison, error) {
	state, ctx, cancel := b.state(ctx, shard)
	defer cancel()
	newest, token, err := state.ReadConfig(ctx, shard)
	if err != nil {
		return web.Comparison{}, err
	}
	applied, err := state.UnverifiedApplied(ctx)
	if err != nil {
		return web.Comparison{}, err
	}
	overrides, groups, _, _ := state.ReadGroups(ctx) // without them, the page shows no warnings of overrides
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.compared[shard]; known.newest == token && known.groups == groups &&
		known.applied == applied.Revision {
		return known.result, nil
	}
	before, _ := config.ParseApplied(shard, applied.Body)
	after, _ := config.ParseStored(shard, newest)
	plan := planOf(compared{name: shard, stored: applied.Body, file: newest, before: before, after: after,
		overrides: overrides})
	result := web.Comparison{Same: plan.Unchanged, Invalid: before == nil || after == nil, Rolling: plan.RollingGroups,
		Effects: plan.Effects}
	result.Diff, result.More = diffLines(applied.Body, newest)
	b.compared[shard] = comparison{token, groups, applied.Revision, result}
	return result, nil
}

// diffLines returns the first lines of the difference between two texts, and the number of remaining lines.
func diffLines(before, after []byte) (lines []web.DiffLine, more int) {
	for line := range strings.Lines(unifiedDiff(before, after, "in force", "newest")) {
		class := map[byte]string{'+': "added", '-': "removed", '@': "position"}[line[0]]
		lines = append(lines, web.DiffLine{Class: class, Text: strings.TrimSuffix(line, "\n")})
	}
	more = max(0, len(lines)-maxDiff)
	return lines[:len(lines)-more], more
}

// unifiedDiff returns the difference between two texts as diff -u does.
func unifiedDiff(before, after []byte, beforeName, afterName string) string {
	// An error is impossible, because the text is written to memory.
	text, _ := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: difflib.SplitLines(string(before)),
		B: difflib.SplitLines(string(after)), FromFile: beforeName, ToFile: afterName, Context: 3})
	return text
}

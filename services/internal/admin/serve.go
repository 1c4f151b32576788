package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// routesText lists the calls of the API.
func routesText() string {
	var text strings.Builder
	for _, route := range httpapi.Routes() {
		text.WriteString("  " + route + "\n")
	}
	return text.String()
}

type serveOptions struct {
	bind, tokenFile, certFile, keyFile string
	insecure                           bool
	bucket                             bucketFlags
	// opened is called with the page's URL as soon as the HTTP server listens.
	opened func(url string)
}

func (a *app) serveCommand() *cobra.Command {
	var o serveOptions
	s := new(scope)
	cmd := &cobra.Command{
		Use: "serve", Short: "Serve the web page and the HTTP API", Args: cobra.NoArgs,
		Long: `Serves a web page at /ui/ and a JSON API over HTTP, for the shards in --servers. Most
calls of the API take ?shard=S or ?all_shards=true:

` + routesText() + `
"POST /group" creates or changes a group: its body is a JSON merge patch of the group, such
as {"size": 5}. GET /openapi.json describes every call, with its parameters.

With --token-file, clients of "nstance-admin serve" need a token from this file. They send
it in the header "Authorization: Bearer TOKEN". To see the web page, a person logs in with
a token. For each change, "serve" logs the name that the token file gives for the token.

A line of a token file has one of the forms TOKEN, NAME TOKEN, or NAME TOKEN ROLE. A
token has at least 16 characters. The role is viewer, operator or admin. Viewers only
read. A token without a role has the role operator in the API, and viewer on the web
page.

Without --token-file, "nstance-admin serve" needs no login, but only this machine can
connect: it listens on 127.0.0.1:8080, or on the loopback address in --bind.

With --storage-bucket, the web page of "nstance-admin serve" also shows what only the
bucket has: the lock and what is last known of a shard that has no leader, and the effects
of a configuration that no leader has applied yet. Every user of the page sees both. The
command needs credentials that may read the bucket.

If "nstance-admin serve" listens on an address that other machines can reach, it needs
TLS: give --tls-cert-file and --tls-key-file. Behind a proxy that serves TLS, give
--insecure instead. Tokens and answers are then sent in plain text.`,
		Example: `  nstance-admin serve
  curl -s 'http://127.0.0.1:8080/groups?all_shards=true'

  (umask 077; echo "ci $(openssl rand -hex 24) operator" > tokens)
  nstance-admin serve --bind :8080 --token-file tokens --tls-cert-file tls.crt --tls-key-file tls.key`,
	}
	cmd.Flags().StringVar(&o.bind, "bind", ":8080", "address to listen on; without --token-file 127.0.0.1:8080")
	cmd.Flags().StringVar(&o.tokenFile, "token-file", "", "file with the tokens of the clients")
	cmd.Flags().StringVar(&o.certFile, "tls-cert-file", "", "certificate chain (PEM), to serve HTTPS")
	cmd.Flags().StringVar(&o.keyFile, "tls-key-file", "", "private key of the certificate (PEM)")
	cmd.Flags().BoolVar(&o.insecure, "insecure", false,
		"serve plain HTTP on other addresses than this machine's")
	cmd.MarkFlagsRequiredTogether("tls-cert-file", "tls-key-file")
	o.bucket.add(cmd)
	cmd.Flags().Lookup("storage-bucket").Usage = "the bucket, for more on the web page; for file, the directory"
	cmd.Flags().Lookup("storage-timeout").Usage = "how long the bucket may take to show one shard"
	s.reach(cmd)
	s.reader = cmd
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.tokenFile == "" && !cmd.Flags().Changed("bind") {
			o.bind = "127.0.0.1:8080"
		}
		return a.serve(cmd.Context(), s, o)
	}
	return cmd
}

// shutdownTime is the time that requests in progress get when the server stops.
const shutdownTime = 5 * time.Second

func (a *app) serve(ctx context.Context, s *scope, o serveOptions) error {
	host, _, err := net.SplitHostPort(o.bind)
	if err != nil {
		return usagef("--bind: want host:port: %w", err)
	}
	var tokens httpapi.Tokens
	if o.tokenFile != "" {
		text, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return fmt.Errorf("read tokens: %w", err)
		}
		if tokens, err = httpapi.ParseTokens(string(text)); err != nil {
			return withHint(fmt.Errorf("read tokens: %s: %w", o.tokenFile, err), "openssl rand -hex 24 makes a token")
		}
	} else if !httpapi.Loopback(host) {
		return &usageError{err: fmt.Errorf("--bind %s: other machines could call without a token", o.bind),
			hint: "give --token-file, or bind to a loopback address such as 127.0.0.1:8080"}
	}
	if o.certFile == "" && !o.insecure && !httpapi.Loopback(host) {
		return &usageError{err: fmt.Errorf("--bind %s: tokens would cross the network in plain text", o.bind),
			hint: "give --tls-cert-file and --tls-key-file, or --insecure behind a proxy that serves TLS"}
	}
	bucket, err := a.openPageBucket(ctx, &o.bucket)
	if err != nil {
		return err
	}
	f, err := a.fleet(s)
	if err != nil {
		return err
	}
	defer f.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.bind)
	if err != nil {
		return withHint(fmt.Errorf("listen: %w", err), "choose another address with --bind")
	}
	log := slog.New(slog.NewTextHandler(a.Stderr, nil))
	request := 2 * s.timeout // to read a group and to change it
	page, follow := web.New(web.Options{Fleet: f, Bucket: bucket, Tokens: tokens, Version: a.version, Timeout: request,
		Now: a.Now, Log: log})
	mux := http.NewServeMux()
	mux.Handle(web.Path, page)
	mux.Handle("GET /{$}", http.RedirectHandler(web.Path, http.StatusFound))
	ended := make(chan struct{})
	mux.Handle("/", httpapi.New(httpapi.Options{Fleet: f, Tokens: tokens, Version: a.version, Timeout: request,
		Ended: ended, Log: log}))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      request + 15*time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	server.RegisterOnShutdown(func() { close(ended) }) // Shutdown is called once
	scheme, who := "http", "callers need a token"
	if o.certFile != "" {
		scheme = "https"
	}
	if o.tokenFile == "" {
		who = "without a token, for this machine only; --token-file opens it to others"
	}
	a.note("nstance-admin serves %s://%s %s.", scheme, listener.Addr(), who)
	if o.opened != nil {
		o.opened(fmt.Sprintf("%s://%s%s", scheme, listener.Addr(), web.Path))
	}
	return tasks.Run(ctx, func(context.Context) error {
		if o.certFile != "" {
			return ignoreClosed(server.ServeTLS(listener, o.certFile, o.keyFile))
		}
		return ignoreClosed(server.Serve(listener))
	}, follow, func(ctx context.Context) error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return errors.Join(fmt.Errorf("shut down: %w", err), server.Close())
		}
		return nil
	})
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// pageBucket implements web.Bucket. It only reads.
type pageBucket struct {
	app     *app
	cluster objstore.Store
	own     func(ctx context.Context, shard string) (objstore.Store, error)
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
	return &pageBucket{app: a, cluster: store, own: b.opener(store), timeout: b.timeout,
		compared: map[string]comparison{}}, nil
}

// state opens the documents of a shard, and returns the bucket in which they are.
func (b *pageBucket) state(ctx context.Context, shard string) (*clusterstate.State, objstore.Store, error) {
	store, err := b.own(ctx, shard)
	if err != nil {
		return nil, nil, err
	}
	options := clusterstate.Options{Cluster: b.cluster, Shard: store, ShardID: shard, Now: b.app.Now}
	return clusterstate.New(options), store, nil
}

// Lock returns the election lock of a shard that has no leader.
func (b *pageBucket) Lock(ctx context.Context, shard string) web.Lock {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	state, store, err := b.state(ctx, shard)
	if err != nil {
		return web.Lock{Waits: err.Error(), Next: b.app.nextFor(err, "correct --shard-storage")}
	}
	lock, _, err := state.ReadLock(ctx, shard)
	view := web.Lock{Holder: lock.LeaderID, Heir: lock.Heir.ID, Term: lock.Term, Lease: lock.Lease()}
	if err == nil {
		if view.RenewedAt = lockWritten(ctx, store, shard); view.RenewedAt.IsZero() {
			view.RenewedAt = lock.RenewedAt
		}
	}
	age := b.app.Now().Sub(view.RenewedAt)
	found := b.app.describeLock(lock, err, age)
	if found.Status == problem {
		found = withReason(found, endOfLeadership(ctx, store, shard))
	}
	view.Waits, view.Next = found.Result, found.Next
	if found.Status == ok {
		view.Waits, view.Next = describeHeld(lock, age)
	}
	if server := b.app.checkNewestServer(ctx, state); server.Status == problem {
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
			"another server can take over when the lease ends", lock.LeaderID), ""
	}
	return fmt.Sprintf("the lease of %s has ended: another server takes over now, if one runs", lock.LeaderID),
		"start a server of the shard if none runs"
}

// maxDiff is the maximum number of lines that the page shows when it compares two configurations.
const maxDiff = 500

// Compare compares two configurations of a shard: the one that a leader applied last, and the newest one. It does not
// check signatures, because the result is only shown.
func (b *pageBucket) Compare(ctx context.Context, shard string) (web.Comparison, error) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	state, _, err := b.state(ctx, shard)
	if err != nil {
		return web.Comparison{}, err
	}
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

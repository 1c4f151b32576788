// Package web serves the page of `nstance-admin serve`. The page shows what the shards of a fleet do, and is readable
// without scripts.
//
// Invariants:
//   - A page shows the values that the HTTP API answers. The package makes no decision about instances.
//   - Nobody changes anything without a login as operator, a typed confirmation, and a form of this site.
//   - No page has an inline script or style, so that the browser can refuse every inline script and style.
package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
)

// Path is the prefix of the paths of all pages.
const Path = "/ui/"

const (
	// maxForm is the size limit of a form, in bytes.
	maxForm = 64 << 10
	// maxText is the size limit of a part of the path, of a query parameter and of a field of a form, in bytes.
	maxText = 2048
	// maxRequests is the limit of concurrent requests, and maxLive the limit of browsers that receive changes of open
	// pages.
	maxRequests, maxLive = 64, 256
)

//go:embed templates assets
var files embed.FS

// Options configure [New]. All but Bucket and Tokens are required.
type Options struct {
	Fleet *fleet.Fleet
	// Bucket reads the bucket of the shards. If it is nil, the page shows only what leaders answer.
	Bucket Bucket
	// Tokens authenticate clients at the login. If there are none, no login is needed, and every client that can
	// connect has the role operator. The listener must then be reachable only from this machine.
	Tokens  httpapi.Tokens
	Version string
	// Timeout limits one request, including its calls to shards.
	Timeout time.Duration
	Now     func() time.Time
	Log     *slog.Logger
}

type page struct {
	Options
	hub         *hub
	process     string // a random text, which tells this process from others
	turns, live chan struct{}
	sessions    sessions
	templates   map[string]*template.Template
	assets      string // hash of the assets, part of their URLs
}

// New returns the page, and a function that follows the shards until ctx ends and then returns nil. Until it is called,
// pages show no alerts and receive no changes.
func New(options Options) (handler http.Handler, run func(ctx context.Context) error) {
	hub := newHub(options.Fleet.Live(), options.Now)
	p := &page{Options: options, hub: hub, turns: make(chan struct{}, maxRequests),
		live: make(chan struct{}, maxLive), process: rand.Text()[:8]}
	p.assets = hashAssets()
	p.templates = parseTemplates(p)

	mux := http.NewServeMux()
	for _, r := range p.routes() {
		mux.HandleFunc(strings.TrimSpace(r.method+" "+Path+r.path), r.handler)
	}
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(p.answer(func(http.ResponseWriter, *http.Request) error {
		return &httpError{http.StatusForbidden, "A form of another site was refused.", ""}
	}))
	return p.guard(cross.Handler(mux)), p.hub.run
}

// route is a page, a form, or another answer. The path is relative to Path.
type route struct {
	method, path string // without a method: all of them
	handler      http.HandlerFunc
}

func (p *page) routes() []route {
	return []route{
		{http.MethodGet, "assets/{hash}/", p.serveAssets()},
		{"", "login", p.answer(p.login)},
		{http.MethodPost, "logout", p.answer(p.logout)},
		{http.MethodGet, "{$}", p.read(p.showFleet)},
		{http.MethodGet, "shards/{shard}", p.read(p.showShard)},
		{http.MethodGet, "shards/{shard}/groups/{group}", p.read(p.showGroup)},
		{http.MethodGet, "shards/{shard}/instances/{instance}", p.read(p.showInstance)},
		{http.MethodPost, "shards/{shard}/groups/{group}/{action}", p.change(p.changeGroup)},
		{http.MethodPost, "shards/{shard}/instances/{instance}/{action}", p.change(p.changeInstance)},
		{http.MethodGet, "events", p.read(p.showEvents)},
		{http.MethodGet, "config", p.read(p.showConfig)},
		{http.MethodGet, "live", p.serveLive},
		{"", "", p.answer(func(http.ResponseWriter, *http.Request) error {
			return &httpError{http.StatusNotFound, "There is no such page.", ""}
		})},
	}
}

// guard sets the headers of every answer and limits requests. If no login is needed, it rejects requests whose host
// name is not one of this machine. This prevents DNS rebinding, in which another site's page sends requests to this
// machine under the name of that site.
func (p *page) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if p.Tokens == nil && !httpapi.NamesThisMachine(r) {
			p.fail(w, r, &httpError{http.StatusForbidden, "Without tokens only this machine is served.",
				"Open the page as localhost, or start nstance-admin serve with --token-file."})
			return
		}
		// The form is read before the request takes a turn, so that slow clients do not close the page to others. The
		// server's read timeout ends them.
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			form, err := io.ReadAll(r.Body)
			if err != nil {
				p.fail(w, r, &httpError{http.StatusBadRequest, "The form did not arrive, or is too large.", ""})
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(form))
		}
		if err := checkSizes(r); err != nil {
			p.fail(w, r, err)
			return
		}
		turns := p.turns
		if r.URL.Path == Path+"live" {
			turns = p.live
		}
		select {
		case turns <- struct{}{}:
			defer func() { <-turns }()
		default:
			h.Set("Retry-After", "1")
			p.fail(w, r, &httpError{http.StatusServiceUnavailable, "Too many pages are open.",
				"Try again in a moment."})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkSizes checks the sizes of the parts of a request. It parses the form. It ignores what cannot be parsed, as the
// handlers do.
func checkSizes(r *http.Request) error {
	tooLong := &httpError{http.StatusBadRequest, fmt.Sprintf("A part of the address or of the form has more than %d "+
		"bytes.", maxText), ""}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); strings.HasPrefix(kind, "multipart/") {
		return &httpError{http.StatusUnsupportedMediaType, "The page reads no form of this type.", ""}
	}
	for part := range strings.SplitSeq(r.URL.Path, "/") {
		if len(part) > maxText {
			return tooLong
		}
	}
	_ = r.ParseForm()
	for name, values := range r.Form {
		for _, value := range append(values, name) {
			if len(value) > maxText {
				return tooLong
			}
		}
	}
	return nil
}

// httpError is an error with its HTTP status. Hint says what to do next and may be empty.
type httpError struct {
	status        int
	message, hint string
}

func (e *httpError) Error() string { return e.message }

// answer returns a handler that calls the function `do` with a time limit. If `do` returns an error, the handler shows
// the error as a page.
func (p *page) answer(do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
		if err := do(w, r); err != nil {
			p.fail(w, r, err)
		}
	}
}

// start begins a call of shards. The function that it returns waits for the answers.
func start[Q, M proto.Message](p *page, r *http.Request, shards []string, method fleet.Method[Q, M],
	request Q) func() []fleet.Answer[M] {
	var answers []fleet.Answer[M]
	var wg sync.WaitGroup
	wg.Go(func() { answers = fleet.Call(r.Context(), p.Fleet, shards, method, request) })
	return func() []fleet.Answer[M] {
		wg.Wait()
		return answers
	}
}

type clientKey struct{}

// clientOf returns the client of a request. Only handlers that p.read wraps may call clientOf.
func clientOf(r *http.Request) Client {
	client, _ := r.Context().Value(clientKey{}).(Client)
	return client
}

// read is like p.answer, but it serves only clients that are logged in. It redirects other clients to the login.
func (p *page) read(do func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return p.answer(func(w http.ResponseWriter, r *http.Request) error {
		client, ok := p.client(r)
		if !ok {
			if r.Method != http.MethodGet {
				return &httpError{http.StatusUnauthorized, "You are not logged in.", "Log in and try again."}
			}
			http.Redirect(w, r, Path+"login?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return nil
		}
		r = r.WithContext(context.WithValue(r.Context(), clientKey{}, client))
		if err := do(w, r); err != nil {
			p.fail(w, r, err) // with the client's name
		}
		return nil
	})
}

// shardOf returns the shard in a request's path.
func (p *page) shardOf(r *http.Request) (string, error) {
	shard := r.PathValue("shard")
	if !slices.Contains(p.Fleet.Shards(), shard) {
		return "", &httpError{http.StatusNotFound, fmt.Sprintf("There is no shard %q.", shard),
			"There are: " + strings.Join(p.Fleet.Shards(), ", ") + "."}
	}
	return shard, nil
}

// groupOf returns the shard and the group in a request's path.
func (p *page) groupOf(r *http.Request) (shard, group string, err error) {
	if shard, err = p.shardOf(r); err != nil {
		return "", "", err
	}
	group = r.PathValue("group")
	if err := ident.ValidateName(group); err != nil {
		return "", "", &httpError{http.StatusBadRequest, "group: " + err.Error(), ""}
	}
	return shard, group, nil
}

// frame holds the values that every page shows.
type frame struct {
	Title   string
	Client  Client
	Login   bool // there is a login, so there is a logout
	Version string
	Now     time.Time
	// Live is the address from which the page receives changes, or empty.
	Live string
	View any
}

// render writes a page.
func (p *page) render(w http.ResponseWriter, r *http.Request, status int, name, title string, view any) error {
	return p.renderLive(w, r, status, name, title, "", view)
}

func (p *page) renderLive(w http.ResponseWriter, r *http.Request, status int, name, title, live string,
	view any) error {
	var b bytes.Buffer
	f := frame{title, clientOf(r), p.Tokens != nil, p.Version, p.Now().UTC(), live, view}
	if err := p.templates[name].ExecuteTemplate(&b, "layout.html", f); err != nil {
		return fmt.Errorf("render page %s: %w", name, err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only if the client has disconnected
	return nil
}

// fail shows an error.
func (p *page) fail(w http.ResponseWriter, r *http.Request, err error) {
	view := errorView(err)
	if view.status == http.StatusInternalServerError {
		p.Log.Error("page failed", "path", r.URL.Path, "error", err)
	}
	if err := p.render(w, r, view.status, "error", "Error", view); err != nil {
		http.Error(w, view.Message, view.status)
	}
}

// hashAssets returns a hash of all assets.
func hashAssets() string {
	hash := sha256.New()
	// The embedded files are part of the program, so reading them does not fail.
	_ = fs.WalkDir(files, "assets", func(path string, _ fs.DirEntry, _ error) error {
		text, _ := files.ReadFile(path)
		hash.Write(text)
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil))[:12]
}

// serveAssets serves the style and the script. The URL of these files contains a hash of their content, so a browser
// may cache them.
func (p *page) serveAssets() http.HandlerFunc {
	assets := http.FileServerFS(files)
	return func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("hash") == p.assets {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		r.URL.Path = "/assets/" + name
		if name == "" {
			http.NotFound(w, r)
			return
		}
		assets.ServeHTTP(w, r)
	}
}

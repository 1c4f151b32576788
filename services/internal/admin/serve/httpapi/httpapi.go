// Package httpapi serves the HTTP API of `nstance-admin serve`: the operator API of a fleet as JSON.
//
// Invariant: the handler and the OpenAPI document come from the descriptor of the operator API, with its options and
// comments. A client that changes something is
// authenticated, unless only this machine can connect. The log names the client of every change.
package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

const (
	// maxBody is the size limit of a request's body, in bytes.
	maxBody = 64 << 10
	// maxText is the size limit of a query parameter, a text in a body and the name of a variable, in bytes. The value
	// of a variable may be longer.
	maxText = 512
	// maxList and maxMap are the limits of the entries of a list and of a map in a body.
	maxList, maxMap = 4096, 1024
	// maxProblem is the size limit of a message that refuses a request, in bytes. A message may quote the request.
	maxProblem = 1024
	// maxRequests is the limit of concurrent requests.
	maxRequests = 64

	// shardParameter and allParameter are the query parameters that select shards.
	shardParameter, allParameter = "shard", "all_shards"
	// dryParameter is the query parameter that asks what a change would do.
	dryParameter = "dry_run"
)

// Options configure [New].
type Options struct {
	Fleet *fleet.Fleet
	// Tokens authenticate clients. If there are none, every client that can connect is accepted. The listener must then
	// be reachable only from this machine.
	Tokens  Tokens
	Version string
	// Timeout limits one request, including its calls to shards.
	Timeout time.Duration
	// Ended is closed by the caller to end all event streams.
	Ended <-chan struct{}
	Log   *slog.Logger
}

// Token is a client's name, its role, and the hash of its token.
type Token struct {
	Name string
	// Role is empty if the token file has none. The API then permits what an operator may do, and the web page permits
	// what a viewer may do.
	Role record.OperatorRole
	hash [sha256.Size]byte
}

// Tokens are the accepted tokens.
type Tokens []Token

// minToken is the length of the shortest token, in characters.
const minToken = 16

// ParseTokens parses a token file. Each line has one, two or three words: TOKEN, NAME TOKEN, or NAME TOKEN ROLE. It
// ignores empty lines and lines that begin with #. Errors do not quote the file.
func ParseTokens(text string) (Tokens, error) {
	var tokens Tokens
	for i, line := range strings.Split(pasted.Clean(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) > 3 {
			return nil, fmt.Errorf("line %d: want a token, a name and a token, or a name, a token and a role", i+1)
		}
		name, token, role := "token", fields[0], record.OperatorRole("")
		if len(fields) > 1 {
			name, token = fields[0], fields[1]
		}
		if len(fields) > 2 {
			role = record.OperatorRole(fields[2])
			if !slices.Contains(record.OperatorRoles, role) {
				return nil, fmt.Errorf("line %d: the third word is the role: want viewer, operator or admin", i+1)
			}
		}
		if len(token) < minToken {
			return nil, fmt.Errorf("line %d: the token has %d characters, want at least %d", i+1, len(token), minToken)
		}
		tokens = append(tokens, Token{name, role, sha256.Sum256([]byte(token))})
	}
	if len(tokens) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return tokens, nil
}

// Find returns the name and the role of the client with a token. It compares every known token in constant time.
func (t Tokens) Find(token string) (client Token, ok bool) {
	hash := sha256.Sum256([]byte(token))
	for _, have := range t {
		if subtle.ConstantTimeCompare(hash[:], have.hash[:]) == 1 {
			client, ok = have, true
		}
	}
	return client, ok
}

type api struct {
	Options
	turns, followers chan struct{}
}

// New returns the handler.
func New(options Options) http.Handler {
	a := &api{options, make(chan struct{}, maxRequests), make(chan struct{}, maxFollowers)}
	mux := http.NewServeMux()
	paths := map[string][]string{}
	for _, r := range a.routes() {
		mux.HandleFunc(r.method+" "+r.path, a.serve(r))
		paths[r.path] = append(paths[r.path], r.method)
	}
	for path, methods := range paths {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			refuse(w, http.StatusMethodNotAllowed, "this path takes %s only", strings.Join(methods, ", "))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, "there is no %q; /openapi.json describes what there is", r.URL.Path)
	})
	// Pages of other sites must not make a browser on this machine call the API.
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "calls from other sites' pages are refused")
	}))
	return a.guard(cross.Handler(mux))
}

// guard sets the common headers and limits the number of requests. Without tokens, it rejects requests for host names
// of other machines. So a page of another site cannot call the API by a host name that resolves to this machine (DNS
// rebinding).
func (a *api) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if len(a.Tokens) == 0 && !NamesThisMachine(r) {
			refuse(w, http.StatusForbidden, "without tokens only localhost is served, not %q", r.Host)
			return
		}
		select {
		case a.turns <- struct{}{}:
			defer func() { <-a.turns }()
		default:
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusServiceUnavailable, "%d requests are being answered; try again in a moment",
				maxRequests)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// NamesThisMachine reports whether a request's host is a loopback name or address. Such a host always means this
// machine itself.
func NamesThisMachine(r *http.Request) bool { return Loopback(hostOf(r.Host)) }

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// Loopback reports whether a host is a loopback name or address.
func Loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// call is one accepted request.
type call struct {
	*http.Request
	who    string
	shards []string
	detail string // description of a change, for the log
	dryRun bool
}

// refused is an error with its HTTP status.
type refused struct {
	status  int
	message string
}

func (r *refused) Error() string { return r.message }

func badRequest(format string, args ...any) error {
	return &refused{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// serve returns the handler of one route.
func (a *api) serve(r route) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		c := &call{Request: req, who: "local"}
		if r.role != "" && len(a.Tokens) > 0 {
			scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
			client, ok := a.Tokens.Find(pasted.Clean(token))
			if c.who = client.Name; !ok || !strings.EqualFold(scheme, "Bearer") {
				w.Header().Set("WWW-Authenticate", `Bearer realm="nstance-admin"`)
				refuse(w, http.StatusUnauthorized, "a bearer token is needed: Authorization: Bearer TOKEN")
				return
			}
			if !client.Role.Includes(r.role) {
				a.Log.Warn("call refused", "who", c.who, "remote", req.RemoteAddr, "path", req.URL.Path,
					"error", "the role is "+string(client.Role))
				refuse(w, http.StatusForbidden, "this needs a token with the role %s", r.role)
				return
			}
		}
		err := a.scope(r, c)
		status, body := http.StatusOK, any(nil)
		switch {
		case err != nil:
		case r.follow != nil:
			if err = a.serveFollow(w, r, c); err == nil {
				return
			}
		default:
			ctx, cancel := context.WithTimeout(c.Context(), a.Timeout)
			defer cancel()
			c.Request = c.WithContext(ctx)
			status, body, err = r.do(c)
		}
		if r.method != http.MethodGet && !c.dryRun {
			log := a.Log.With("who", c.who, "remote", req.RemoteAddr, "method", req.Method, "path", req.URL.Path,
				"shards", strings.Join(c.shards, ","))
			switch {
			case err != nil:
				log.Warn("change refused", "detail", c.detail, "error", short(err.Error()))
			case status != http.StatusOK:
				log.Warn("change failed", "detail", c.detail, "status", status)
			default:
				log.Info("change made", "detail", c.detail)
			}
		}
		var no *refused
		switch {
		case errors.As(err, &no):
			refuse(w, no.status, "%s", no.message)
		case err != nil:
			refuse(w, http.StatusInternalServerError, "%v", err)
		default:
			write(w, status, body)
		}
	}
}

// scope reads the query parameters. It rejects unknown and repeated ones, and determines the shards of the request.
func (a *api) scope(r route, c *call) error {
	query := c.URL.Query()
	for name, values := range query {
		known, limit := r.shards && (name == shardParameter || name == allParameter) ||
			r.explainable && name == dryParameter, 1
		for _, p := range r.query {
			if p.name() == name {
				known = true
				if p.field().IsList() {
					limit = maxList
				}
			}
		}
		switch {
		case !known:
			return badRequest("query: %q is not known", name)
		case len(values) > limit:
			return badRequest("query: %q is there %d times", name, len(values))
		case len(values[0]) > maxText:
			return badRequest("query: %s has %d bytes, at most %d are allowed", name, len(values[0]), maxText)
		}
	}
	if !r.shards {
		return nil
	}
	shard, all, dry := query.Get(shardParameter), query.Get(allParameter), query.Get(dryParameter)
	c.dryRun = dry == "true"
	switch {
	case dry != "" && dry != "true" && dry != "false":
		return badRequest("query: dry_run is %q, want true or false", dry)
	case all != "" && all != "true" && all != "false":
		return badRequest("query: all_shards is %q, want true or false", all)
	case all == "true" && shard != "":
		return badRequest("query: shard and all_shards exclude each other")
	case all == "true" || shard == "" && len(a.Fleet.Shards()) == 1:
		c.shards = a.Fleet.Shards()
	case shard == "":
		return badRequest("query: which shard? Give ?shard= or ?all_shards=true; there are: %s",
			strings.Join(a.Fleet.Shards(), ", "))
	case !slices.Contains(a.Fleet.Shards(), shard):
		return &refused{http.StatusNotFound, fmt.Sprintf("there is no shard %q; there are: %s", shard,
			strings.Join(a.Fleet.Shards(), ", "))}
	default:
		c.shards = []string{shard}
	}
	return nil
}

// Problem is the answer to a rejected request.
type Problem struct {
	Error string `json:"error"`
}

func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	write(w, status, Problem{short(fmt.Sprintf(format, args...))})
}

// short cuts a message that quotes too much of a request.
func short(message string) string {
	if len(message) <= maxProblem {
		return message
	}
	return strings.ToValidUTF8(message[:maxProblem], "") + "…"
}

func write(w http.ResponseWriter, status int, body any) {
	text, err := json.MarshalIndent(body, "", "  ")
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error": "the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // fails only if the client has disconnected
}

package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// metadata is the metadata server of one instance.
// https://cloud.google.com/compute/docs/metadata/overview
type metadata struct {
	number   string // of the project
	uniqueID func(email string) string

	mu      sync.Mutex
	current compute.Instance
	changed chan struct{} // closed at the next change
}

func newMetadata(number string, uniqueID func(email string) string, i compute.Instance) *metadata {
	return &metadata{number: number, uniqueID: uniqueID, current: i, changed: make(chan struct{})}
}

func (m *metadata) view() compute.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

func (m *metadata) set(i compute.Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.current = i
	close(m.changed)
	m.changed = make(chan struct{})
}

const (
	root       = "/computeMetadata/v1/"
	flavor     = "Metadata-Flavor"
	identities = "instance/service-accounts/default/identity"
	// longestWait limits the wait of a request without the parameter timeout_sec. The real service has no such limit.
	longestWait = time.Hour
)

// ServeHTTP implements http.Handler.
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(flavor, "Google")
	w.Header().Set("Server", "Metadata Server for VM")
	path, below := strings.CutPrefix(r.URL.Path, root)
	switch {
	case r.URL.Path == "/": // programs look here for the flavor
		fmt.Fprintln(w, "computeMetadata/")
		return
	case !below || r.Method != http.MethodGet:
		http.NotFound(w, r)
		return
	case r.Header.Get(flavor) != "Google" || r.Header.Get("X-Forwarded-For") != "":
		http.Error(w, "Missing "+flavor+":Google header.", http.StatusForbidden)
		return
	}
	text, found := m.await(r, path)
	if path == identities && found {
		token, err := m.identity(r.FormValue("audience"), r.FormValue("format") == "full")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		text = token
	}
	if !found {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/text")
	if strings.HasPrefix(text, "{") {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("ETag", etag(text))
	fmt.Fprint(w, text)
}

func etag(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// await returns the value at a path. If the request has wait_for_change, await first waits until the value's etag
// differs from last_etag. The wait takes at most timeout_sec.
func (m *metadata) await(r *http.Request, path string) (text string, found bool) {
	limit := longestWait
	if seconds, err := strconv.Atoi(r.FormValue("timeout_sec")); err == nil {
		limit = time.Duration(seconds) * time.Second
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	last := r.FormValue("last_etag")
	for {
		m.mu.Lock()
		text, found = value(m.values(), path)
		changed := m.changed
		m.mu.Unlock()
		if r.FormValue("wait_for_change") != "true" || found && last != "" && etag(text) != last {
			return text, found
		}
		if last == "" {
			last = etag(text)
		}
		select {
		case <-changed:
		case <-timeout.C:
			return text, found
		case <-r.Context().Done():
			return text, found
		}
	}
}

// value returns the value at a path. If the path ends with a slash, value returns the list of the directory's entries.
func value(values map[string]string, path string) (text string, found bool) {
	if text, found = values[path]; found || !strings.HasSuffix(path, "/") {
		return text, found
	}
	entries := map[string]bool{}
	for name := range values {
		if rest, ok := strings.CutPrefix(name, path); ok {
			entry, _, directory := strings.Cut(rest, "/")
			if directory {
				entry += "/"
			}
			entries[entry] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(entries)), "\n"), len(entries) > 0
}

// values returns all values, by path. The caller must hold mu.
func (m *metadata) values() map[string]string {
	i := m.current
	nic := i.Interface()
	values := map[string]string{
		"project/project-id": strings.Split(i.Path, "/")[1], "project/numeric-project-id": m.number,
		"instance/id": ID(i.ID), "instance/name": i.Name, "instance/hostname": i.Name,
		"instance/zone":                           "projects/" + m.number + "/zones/" + i.Zone,
		"instance/image":                          i.Image,
		"instance/preempted":                      strings.ToUpper(strconv.FormatBool(i.Preempted)),
		"instance/maintenance-event":              "NONE",
		"instance/upcoming-maintenance":           upcoming(i.Upcoming),
		"instance/scheduling/on-host-maintenance": hostPolicy(i),
		"instance/network-interfaces/0/ip":        rest.Text(nic, "networkIP"),
		"instance/network-interfaces/0/network":   "projects/" + m.number + "/networks/" + i.Network(),
	}
	for key, text := range i.Metadata() {
		values["instance/attributes/"+key] = text
	}
	for n, text := range compute.Aliases(nic) {
		values[fmt.Sprintf("instance/network-interfaces/0/ip-aliases/%d", n)] = text
	}
	for n, text := range i.Forwarded {
		values[fmt.Sprintf("instance/network-interfaces/0/forwarded-ips/%d", n)] = text
	}
	for _, account := range i.Objects("serviceAccounts") {
		email := rest.Text(account, "email")
		token, _ := json.Marshal(map[string]any{"access_token": credentials.Token(email), "expires_in": 3599,
			"token_type": "Bearer"})
		for _, name := range []string{"default", email} {
			values["instance/service-accounts/"+name+"/email"] = email
			values["instance/service-accounts/"+name+"/token"] = string(token)
			values["instance/service-accounts/"+name+"/identity"] = ""
		}
	}
	return values
}

// hostPolicy returns what maintenance of its host does to a VM. Spot VMs are always terminated.
func hostPolicy(i compute.Instance) string {
	policy := rest.Text(i.Body, "scheduling", "onHostMaintenance")
	switch {
	case policy != "":
		return policy
	case rest.Text(i.Body, "scheduling", "provisioningModel") == "SPOT":
		return "TERMINATE"
	}
	return "MIGRATE"
}

// upcoming returns the announcement of maintenance that begins at the given time.
// https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
func upcoming(begins time.Time) string {
	if begins.IsZero() {
		return "NONE"
	}
	const form = "2006-01-02T15:04:05-07:00"
	text, _ := json.Marshal(map[string]any{"can_reschedule": "true", "maintenance_status": "PENDING",
		"type":              "SCHEDULED",
		"window_start_time": begins.UTC().Format(form), "latest_window_start_time": begins.UTC().Format(form),
		"window_end_time": begins.Add(4 * time.Hour).UTC().Format(form)}) // encoding strings never fails
	return string(text)
}

// identity returns a signed identity token. https://cloud.google.com/compute/docs/instances/verifying-instance-identity
func (m *metadata) identity(audience string, full bool) (string, error) {
	if audience == "" {
		return "", errors.New("non-empty audience parameter required")
	}
	i := m.view()
	now := time.Now()
	email := rest.Text(i.Objects("serviceAccounts")[0], "email")
	id := m.uniqueID(email)
	claims := jwt.MapClaims{"iss": "https://accounts.google.com", "aud": audience, "iat": now.Unix(),
		"exp": now.Add(time.Hour).Unix(), "email": email, "sub": id, "azp": id}
	if full {
		claims["google"] = map[string]any{"compute_engine": map[string]any{"instance_id": ID(i.ID),
			"instance_name": i.Name, "project_id": strings.Split(i.Path, "/")[1], "zone": i.Zone}}
	}
	return credentials.SignIdentity(claims)
}

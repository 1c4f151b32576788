// Package imds is the instance metadata service of the fake EC2.
package imds

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options describe the instance.
type Options struct {
	ID, Image string
	Userdata  []byte
	// Value returns the value at a path below /latest/meta-data/, such as "instance-id", or at a path that begins with
	// "dynamic/". It returns false if there is no such path.
	Value          func(path string) (value string, ok bool)
	TokensRequired bool // IMDSv2 only
}

// metadata is the instance metadata service of one machine. It does not enforce the hop limit, because requests do not
// travel as packets. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
type metadata struct {
	Options

	now func() time.Time

	mu     sync.Mutex
	tokens map[string]time.Time // Token to its expiry.
}

const (
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds"
	tokenHeader = "X-Aws-Ec2-Metadata-Token"
	longestTTL  = 21600
)

// New returns the metadata service of one instance.
func New(o Options) http.Handler {
	return &metadata{Options: o, now: time.Now, tokens: map[string]time.Time{}}
}

// version matches the first part of the path.
var version = regexp.MustCompile(`^(latest|1\.0|20[0-9]{2}-[0-9]{2}-[0-9]{2})$`)

// ServeHTTP implements [http.Handler].
func (m *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "EC2ws")
	if r.URL.Path == "/latest/api/token" {
		m.token(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	if !m.allowed(w, r) {
		refuse(w, http.StatusUnauthorized)
		return
	}
	first, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if first == "" {
		answer(w, "text/plain", []byte("latest"))
		return
	}
	if !version.MatchString(first) {
		refuse(w, http.StatusNotFound)
		return
	}
	kind, text, ok := m.get(path)
	if !ok {
		refuse(w, http.StatusNotFound)
		return
	}
	answer(w, kind, text)
}

// token answers requests for /latest/api/token. Only PUT is allowed.
func (m *metadata) token(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", "OPTIONS, PUT")
		refuse(w, http.StatusMethodNotAllowed)
		return
	}
	// IMDSv2 refuses a session to a request that came through a proxy.
	if _, forwarded := r.Header["X-Forwarded-For"]; forwarded {
		refuse(w, http.StatusForbidden)
		return
	}
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	if err != nil || ttl < 1 || ttl > longestTTL {
		refuse(w, http.StatusBadRequest)
		return
	}
	id := make([]byte, 40)
	_, _ = rand.Read(id) // Never fails.
	token := base64.URLEncoding.EncodeToString(id)
	m.mu.Lock()
	m.tokens[token] = m.now().Add(time.Duration(ttl) * time.Second)
	m.mu.Unlock()
	w.Header().Set(ttlHeader, strconv.Itoa(ttl))
	answer(w, "text/plain", []byte(token))
}

// allowed reports whether the request's token is valid. A request without a token is an IMDSv1 request, which is
// allowed unless the machine requires tokens.
func (m *metadata) allowed(w http.ResponseWriter, r *http.Request) bool {
	tokens, given := r.Header[tokenHeader]
	if !given {
		return !m.TokensRequired
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.tokens[tokens[0]].Sub(m.now())
	if len(tokens) != 1 || left <= 0 {
		return false
	}
	w.Header().Set(ttlHeader, strconv.Itoa(int(left.Seconds())))
	return true
}

// get returns the content type and text of a path. The path does not contain the version. ok is false if the path does
// not exist.
func (m *metadata) get(path string) (kind string, text []byte, ok bool) {
	switch path {
	case "":
		list := "dynamic\nmeta-data"
		if len(m.Userdata) > 0 {
			list += "\nuser-data"
		}
		return "text/plain", []byte(list), true
	case "user-data", "user-data/":
		return "application/octet-stream", m.Userdata, len(m.Userdata) > 0
	case "dynamic", "dynamic/":
		return "text/plain", []byte("instance-identity/"), true
	case "dynamic/instance-identity", "dynamic/instance-identity/":
		return "text/plain", []byte("document\nrsa2048"), true
	case "dynamic/instance-identity/document":
		return "text/plain", m.document(), true
	case "dynamic/instance-identity/rsa2048":
		if m.Value != nil {
			text, ok := m.Value(path)
			return "text/plain", []byte(text), ok
		}
		return "", nil, false
	case "meta-data":
		path = "meta-data/"
	}
	path, ok = strings.CutPrefix(path, "meta-data/")
	if !ok || m.Value == nil {
		return "", nil, false
	}
	// The request's path to a directory may end with a slash or not.
	for _, p := range []string{path, strings.TrimSuffix(path, "/"), path + "/"} {
		if value, ok := m.Value(p); ok {
			return "text/plain", []byte(value), true
		}
	}
	return "", nil, false
}

// document returns the instance identity document, without its signature.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-identity-documents.html
func (m *metadata) document() []byte {
	if m.Value != nil {
		if text, ok := m.Value("dynamic/instance-identity/document"); ok {
			return []byte(text)
		}
	}
	value := func(path string) string {
		if m.Value == nil {
			return ""
		}
		text, _ := m.Value(path)
		return text
	}
	text, err := json.MarshalIndent(map[string]any{
		"accountId": value("identity-credentials/ec2/account-id"), "architecture": "x86_64",
		"availabilityZone": value("placement/availability-zone"),
		"billingProducts":  nil, "devpayProductCodes": nil, "marketplaceProductCodes": nil, "imageId": m.Image,
		"instanceId":   m.ID,
		"instanceType": value("instance-type"), "kernelId": nil, "pendingTime": m.now().UTC().Format(time.RFC3339),
		"privateIp": value("local-ipv4"),
		"ramdiskId": nil, "region": value("placement/region"), "version": "2017-09-30",
	}, "", "  ")
	if err != nil {
		return nil // Unreachable: the document has only strings.
	}
	return text
}

func answer(w http.ResponseWriter, kind string, text []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // The client may have closed the connection.
}

func refuse(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	fmt.Fprintf(w,
		"<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html><head><title>%d - %s</title></head><body><h1>%d - "+
			"%s</h1></body></html>\n",
		status, http.StatusText(status), status, http.StatusText(status))
}

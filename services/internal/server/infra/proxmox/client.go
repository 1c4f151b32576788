package proxmox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// client calls the API of a cluster. Its methods are safe for concurrent use.
type client struct {
	endpoints []*url.URL
	http      *http.Client
	token     string
	throttled func(call string)
	// current is the position in endpoints of the node that gets the next call.
	current atomic.Int64
}

func newClient(o contract.Options, throttled func(call string)) (*client, error) {
	token, err := readToken(o.TokenFile)
	if err != nil {
		return nil, err
	}
	check, err := tlsConfig(o)
	if err != nil {
		return nil, err
	}
	if throttled == nil {
		throttled = func(string) {}
	}
	transport := &http.Transport{TLSClientConfig: check, TLSHandshakeTimeout: 10 * time.Second,
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, MaxIdleConnsPerHost: 8,
		IdleConnTimeout: time.Minute}
	return &client{endpoints: o.Endpoints, http: &http.Client{Transport: transport}, token: token,
		throttled: throttled}, nil
}

// readToken reads the API token from a file that only its owner may read.
func readToken(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("read the API token: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("the API token in %s may be read by other users (mode %o): chmod 600 %s", file,
			info.Mode().Perm(), file)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the API token: %w", err)
	}
	token := string(pasted.Clean(raw))
	id, secret, _ := strings.Cut(token, "=")
	if user, name, _ := strings.Cut(id, "!"); !strings.Contains(user, "@") || name == "" || secret == "" ||
		strings.ContainsAny(token, " \n") {
		return "", fmt.Errorf("%s does not hold USER@REALM!TOKENID=SECRET", file)
	}
	return token, nil
}

// tlsConfig returns the configuration for checking the nodes' certificates. If the option fingerprints is set, a
// certificate must have one of these fingerprints. Otherwise a known CA must have signed it for the node's name.
func tlsConfig(o contract.Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case len(o.Fingerprints) > 0:
		config.InsecureSkipVerify = true //nolint:gosec // VerifyConnection checks the certificate instead
		config.VerifyConnection = func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if slices.ContainsFunc(o.Fingerprints, func(f []byte) bool { return bytes.Equal(f, sum[:]) }) {
				return nil
			}
			return &certificateError{fmt.Errorf("its certificate has the fingerprint %X, which the option "+
				"fingerprints does not list", sum)}
		}
	case o.CAFile != "":
		raw, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read ca_file: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(raw) {
			return nil, fmt.Errorf("ca_file %s holds no certificate", o.CAFile)
		}
	}
	return config, nil
}

// certificateError means that a node presents another certificate than the configured one.
type certificateError struct{ error }

// apiError is an answer of the API with another status than 200, or the failure of a task. text is the error's message.
type apiError struct {
	status int // 0: a task failed
	text   string
	// foreign means that the answer's body is not JSON, so that no node has made it.
	foreign bool
}

func (e *apiError) Error() string {
	if e.status == 0 {
		return "task failed: " + e.text
	}
	return fmt.Sprintf("%d %s", e.status, e.text)
}

// get makes a call that only reads.
func (c *client) get(ctx context.Context, out any, query url.Values, path ...any) error {
	target := apiPath(path)
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	return c.send(ctx, http.MethodGet, target, "", nil, out)
}

// change makes a call that changes something.
func (c *client) change(ctx context.Context, method string, out any, form url.Values, path ...any) error {
	target := apiPath(path)
	if method == http.MethodDelete {
		if len(form) > 0 {
			target += "?" + form.Encode()
		}
		return c.send(ctx, method, target, "", nil, out)
	}
	return c.send(ctx, method, target, "application/x-www-form-urlencoded", []byte(form.Encode()), out)
}

// run makes a call that starts a task, and waits until the task has ended. If run returns an error, the task may still
// be running.
func (c *client) run(ctx context.Context, method string, form url.Values, path ...any) error {
	var upid string
	if err := c.change(ctx, method, &upid, form, path...); err != nil {
		return err
	}
	return c.wait(ctx, upid)
}

// The pause between two checks of a task doubles from taskSoonest to taskLatest.
const taskSoonest, taskLatest = 20 * time.Millisecond, time.Second

// wait waits until a task has ended, and returns its failure. A task can fail after the call that started it succeeded.
func (c *client) wait(ctx context.Context, upid string) error {
	parts := strings.SplitN(upid, ":", 3)
	if len(parts) < 3 {
		return fmt.Errorf("the answer %q is not the ID of a task", upid)
	}
	for tries := 1; ; tries++ {
		var task struct {
			Status string `json:"status"`
			Exit   string `json:"exitstatus"`
		}
		err := c.get(ctx, &task, nil, "nodes", parts[1], "tasks", upid, "status")
		switch {
		case err != nil:
			return fmt.Errorf("ask for the result of task %s: %w", upid, &lostError{err})
		case task.Status != "stopped":
			_ = tasks.Sleep(ctx, reconnect.Backoff(taskSoonest, taskLatest, tries))
		case task.Exit == "OK" || strings.HasPrefix(task.Exit, "WARNINGS:"):
			return nil
		default:
			return &apiError{text: task.Exit}
		}
	}
}

// lostError means that a task's result is not known.
type lostError struct{ error }

func (e *lostError) Unwrap() error { return e.error }

// upload stores an ISO image in a storage of a node. It replaces an image of the same name.
func (c *client) upload(ctx context.Context, node, storage, name string, content []byte) error {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("content", "iso"); err != nil {
		return err
	}
	part, err := form.CreateFormFile("filename", name)
	if err != nil {
		return err
	}
	if _, err := part.Write(content); err != nil {
		return err
	}
	if err := form.Close(); err != nil {
		return err
	}
	var upid string
	err = c.send(ctx, http.MethodPost, apiPath([]any{"nodes", node, "storage", storage, "upload"}),
		form.FormDataContentType(), body.Bytes(), &upid)
	if err != nil {
		return err
	}
	return c.wait(ctx, upid)
}

func apiPath(parts []any) string {
	var path strings.Builder
	for _, part := range parts {
		path.WriteString("/" + url.PathEscape(fmt.Sprint(part)))
	}
	return path.String()
}

// readTimeout limits a call that only reads, so that time is left to ask another endpoint.
const readTimeout = 10 * time.Second

// send sends a request to the current endpoint. If the endpoint gives no answer of a quorate node, later calls use the
// next endpoint. The request itself goes to the next endpoint too, unless it changes something and a node may have
// received it.
func (c *client) send(ctx context.Context, method, path, contentType string, body []byte, out any) error {
	return c.failOver(ctx, func(endpoint *url.URL) (again bool, err error) {
		try := ctx
		if method == http.MethodGet {
			var cancel context.CancelFunc
			try, cancel = context.WithTimeout(ctx, readTimeout)
			defer cancel()
		}
		connected := false
		try = httptrace.WithClientTrace(try, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			connected = true
		}})
		err = c.sendTo(try, endpoint, method, path, contentType, body, out)
		return method == http.MethodGet || !connected, err
	})
}

// failOver calls try with the current endpoint. If the error is not an answer of a quorate node, the next endpoint
// becomes the current one, and failOver calls try with it if again is true. It tries each endpoint once.
func (c *client) failOver(ctx context.Context, try func(endpoint *url.URL) (again bool, err error)) error {
	first := int(c.current.Load())
	var err error
	for i := range c.endpoints {
		at := (first + i) % len(c.endpoints)
		var again bool
		if again, err = try(c.endpoints[at]); !unanswered(err) || errors.Is(ctx.Err(), context.Canceled) {
			break
		}
		c.current.Store(int64((at + 1) % len(c.endpoints)))
		if !again || ctx.Err() != nil {
			break
		}
	}
	return err
}

// errNoQuorum means that the node that answers is cut off from the majority of its cluster.
var errNoQuorum = errors.New("the node that answers is not part of the cluster's majority (no quorum)")

// unanswered reports whether err is something else than an answer of a quorate node: the endpoint cannot be reached, is
// not trusted, hangs, has a fault, or is not the API. The statuses from 595 on are a node's answers about other nodes.
func unanswered(err error) bool {
	if err == nil {
		return false
	}
	answer, ok := errors.AsType[*apiError](err)
	if !ok {
		return true
	}
	return answer.foreign || answer.status > http.StatusInternalServerError && answer.status < 595 ||
		strings.Contains(answer.text, "no quorum")
}

// maxAnswer bounds the size of an answer.
const maxAnswer = 64 << 20

func (c *client) sendTo(ctx context.Context, endpoint *url.URL, method, path, contentType string, body []byte,
	out any) error {
	request, err := http.NewRequestWithContext(ctx, method, endpoint.String()+"/api2/json"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "PVEAPIToken="+c.token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return readError(answer, raw)
	}
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(raw, &envelope); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(envelope.Data, out); err != nil {
		return fmt.Errorf("the answer has another form than expected: %w", err)
	}
	return nil
}

// readError reads an answer with another status than 200. The reason phrase of the status line says what went wrong.
// For wrong parameters, the body lists the problem of each parameter.
func readError(answer *http.Response, raw []byte) error {
	_, text, _ := strings.Cut(answer.Status, " ")
	var body struct {
		Errors map[string]string `json:"errors"`
	}
	foreign := len(raw) > 0 && json.Unmarshal(raw, &body) != nil // some errors have no body
	var parameters []string
	for name, problem := range body.Errors {
		parameters = append(parameters, name+": "+strings.TrimSpace(problem))
	}
	slices.Sort(parameters)
	text = strings.Join(append([]string{strings.TrimSpace(text)}, parameters...), " ")
	return &apiError{status: answer.StatusCode, text: text, foreign: foreign}
}

// classes maps texts of errors to classes, because the API has no error codes. The first text that matches decides. The
// texts about a lack of space are from the programs that Proxmox VE calls for storage. The other texts are from
// PVE/API2/Qemu.pm, PVE/QemuServer.pm, PVE/AbstractConfig.pm, PVE/Storage.pm and PVE/Cluster.pm.
var classes = []struct {
	text  string
	class infra.Class
}{
	{"no quorum", infra.Indeterminate},
	{"VM is locked (", infra.Indeterminate},
	{"file changed by other user", infra.Indeterminate},
	{"got timeout", infra.Throttled}, // can't lock file '…'
	{"got lock request timeout", infra.Throttled},
	{"No space left on device", infra.Capacity},
	{"out of space", infra.Capacity},
	{"free space", infra.Capacity},
	{"quota exceeded", infra.Capacity},
	{"Cannot allocate memory", infra.Capacity},
	{"start failed", infra.Capacity}, // another node may start it
	{"Configuration file 'nodes/", infra.NotFound},
	{"does not exist", infra.Invalid},
	{"no such cluster node", infra.Invalid},
	{"not allowed for", infra.Invalid},
	{"not supported", infra.Invalid},
	{"does not support", infra.Invalid},
	{"uses local storage", infra.Invalid},
	{"can't clone to non-shared storage", infra.Invalid},
	{"protection mode enabled", infra.Invalid},
	{"suspend to disk during backup", infra.Indeterminate},
	{"Cannot suspend", infra.Invalid}, // managed by HA
	{"cannot suspend", infra.Invalid}, // with a device of the node
}

// classify gives an error its class. Unknown errors and errors of the connection are Indeterminate, because the call
// may still take effect.
func (c *client) classify(what string, err error) error {
	if err == nil {
		return nil
	}
	if classed, ok := errors.AsType[*infra.Error](err); ok {
		return classed
	}
	if _, lost := errors.AsType[*lostError](err); lost {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	if certificate, ok := errors.AsType[*certificateError](err); ok {
		return infra.Errorf(infra.Denied, what, "the node is not the configured one: %w", certificate)
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return infra.Errorf(infra.Denied, what, "the node is not trusted: %w; give the option ca_file or fingerprints",
			err)
	}
	class := infra.Indeterminate
	if answer, ok := errors.AsType[*apiError](err); ok {
		class = answer.class()
	}
	if class == infra.Throttled {
		c.throttled(what)
	}
	return infra.Wrap(class, what, err)
}

// classifyOnNode classifies the error of calls to the node of a VM that the cluster has. If the node does not have the
// VM, the VM is not gone: it has just left the node.
func (c *client) classifyOnNode(what string, err error) error {
	classed := c.classify(what, err)
	if infra.ClassOf(classed) == infra.NotFound {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	return classed
}

func (e *apiError) class() infra.Class {
	switch {
	case e.status == http.StatusUnauthorized || e.status == http.StatusForbidden:
		return infra.Denied
	case e.status == http.StatusBadRequest:
		return infra.Invalid
	case e.status != 0 && e.status != http.StatusInternalServerError:
		return infra.Indeterminate // 595, 596 and 599: the node in the path does not answer
	}
	for _, known := range classes {
		if strings.Contains(e.text, known.text) {
			return known.class
		}
	}
	return infra.Indeterminate
}

// has reports whether err comes from the API or from a failed task, and contains one of the given texts.
func has(err error, texts ...string) bool {
	answer, ok := errors.AsType[*apiError](err)
	return ok && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(answer.text, text) })
}

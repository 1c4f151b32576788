package gcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/api/option"
	"google.golang.org/api/secretmanager/v1"

	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore/gcs"
	"github.com/nstance-kit/nstance/services/store/secretstore/googlesecretmanager"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/guest"
	"github.com/nstance-kit/nstance/tests/cloud/machine"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
	"github.com/nstance-kit/nstance/tests/stacks/scenario"
)

// images is the path of the project's images.
const images = "projects/" + fakegcp.Project + "/global/images/"

// key is the cluster's encryption key.
var key = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))

// cloud is a fake of Google Cloud with real machines.
type cloud struct {
	*fakegcp.Cloud
	machines    *machine.Runner
	server      *httptest.Server
	environment map[string]string
}

// cliConfig returns the path of a CLI configuration with the Google provider. All clouds of the test process share it.
var cliConfig = sync.OnceValues(func() (string, error) {
	programs, err := lab.Build()
	if err != nil {
		return "", err
	}
	return programs.CLIConfig("--google")
})

// newCloud starts a cloud that ends with the test. If the test fails, its cleanup logs the output of the machines.
func newCloud(t *testing.T, zones ...string) *cloud {
	t.Helper()
	return newCloudWith(t, func(google http.Handler) http.Handler { return google }, nil, zones...)
}

// newCloudWith is like newCloud, beside another cloud. front returns the handler that answers the machines' requests.
// The variables of environment are added to the environment of the machines.
func newCloudWith(t *testing.T, front func(http.Handler) http.Handler, environment map[string]string,
	zones ...string) *cloud {
	t.Helper()
	inside := fakegcp.Environment("http://169.254.170.1")
	maps.Copy(inside, environment)
	programs, err := lab.Build()
	must(t, err)
	config, err := cliConfig()
	must(t, err)
	fake, err := fakegcp.New(zones...)
	must(t, err)
	c := &cloud{Cloud: fake}
	dir := t.TempDir()
	c.machines, err = machine.New(machine.Config{Dir: dir, API: front(fake),
		Images: map[string]string{images + "nstance-server-amd64-1": programs.ServerImage,
			images + "nstance-agent-amd64-1": programs.AgentImage},
		Environment: inside})
	must(t, err)
	for _, role := range []string{"server", "agent"} {
		fake.Compute.AddImage(fakegcp.Project, "nstance-"+role+"-amd64-1", "nstance-"+role+"-amd64")
	}
	guests := guest.New(guest.Options{Compute: fake.Compute, Runner: c.machines, Number: fakegcp.Number,
		UniqueID: fake.IAM.UniqueID,
		Log:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); guests.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
		must(t, c.machines.Close())
		lab.LogOutput(t, filepath.Join(dir, "logs"))
	})
	c.server = httptest.NewTLSServer(fake)
	t.Cleanup(c.server.Close)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: c.server.Certificate().Raw}), 0o600))
	c.environment = fakegcp.Environment(c.server.URL)
	maps.Copy(c.environment, map[string]string{"SSL_CERT_FILE": roots, "TF_CLI_CONFIG_FILE": config,
		"GOOGLE_APPLICATION_CREDENTIALS": credentials.Write(t, fakegcp.Project), "CHECKPOINT_DISABLE": "1",
		"TF_IN_AUTOMATION": "1"})
	return c
}

// client returns an HTTP client with the credentials of the project's owner.
func (c *cloud) client() *http.Client {
	return &http.Client{Transport: &oauth2.Transport{Base: googlecloud.Record(c.server.Client().Transport),
		Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: credentials.Token(credentials.Account)})}}
}

// makeKey does what the documentation tells the user to do: it makes a secret with the encryption key.
func (c *cloud) makeKey(t *testing.T) {
	t.Helper()
	c.postSecret(t, "?secretId=key", `{"replication": {"automatic": {}}}`)
	c.postSecret(t, "/key:addVersion",
		`{"payload": {"data": "`+base64.StdEncoding.EncodeToString([]byte(key))+`"}}`)
}

// abandonKey makes the secret of a cluster's CA without a version, one hour ago. A leader leaves such a secret if it
// fails between making the secret and adding the version.
func (c *cloud) abandonKey(t *testing.T, prefix string) {
	t.Helper()
	now := c.Secrets.Now
	c.Secrets.Now = func() time.Time { return now().Add(-time.Hour) }
	c.postSecret(t, "?secretId="+googlesecretmanager.EncodeID(prefix+"ca.key"), `{"replication": {"automatic": {}}}`)
	c.Secrets.Now = now
}

func (c *cloud) postSecret(t *testing.T, path, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.server.URL+"/secretmanager/v1/projects/"+
		fakegcp.Project+"/secrets"+path, strings.NewReader(body))
	must(t, err)
	answer, err := c.client().Do(r)
	must(t, err)
	if _ = answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Fatalf("secret %s: %s", path, answer.Status)
	}
}

// state gives access to the documents of a shard, like the access of nstance-admin. The secrets are in Secret Manager,
// and their names have the given prefix. If the prefix is "", the secrets are in the bucket, encrypted.
func (c *cloud) state(t *testing.T, bucket, cluster, shard, prefix string) *clusterstate.State {
	t.Helper()
	client := option.WithHTTPClient(c.client())
	store, err := gcs.New(t.Context(), bucket, client, option.WithEndpoint(c.server.URL+"/storage/v1/"))
	must(t, err)
	options := clusterstate.Options{Cluster: store, Shard: store, ClusterID: cluster, ShardID: shard}
	if prefix == "" {
		options.Secrets = lab.SecretsInBucket(t, store, cluster, key)
		return clusterstate.New(options)
	}
	service, err := secretmanager.NewService(t.Context(), client, option.WithEndpoint(c.server.URL+"/secretmanager/"))
	must(t, err)
	options.Secrets = googlesecretmanager.New(service, fakegcp.Project, prefix)
	return clusterstate.New(options)
}

// addCalls records the calls of the servers.
func (c *cloud) addCalls(calls *scenario.Ledger) {
	for _, call := range c.Calls() {
		if call.Identity == credentials.Account || call.Identity == "" {
			continue
		}
		calls.Use(call.Method)
		for _, check := range call.Checks {
			denied := ""
			if !check.Allowed {
				denied = "on " + check.Resource
			}
			calls.Check(call.Method, check.Permission, denied)
		}
	}
}

// called returns how often the servers of a shard have called a method.
func (c *cloud) called(shard, method string) (n int) {
	for _, call := range c.Calls() {
		if call.Method == method && strings.Contains(call.Identity, shard) {
			n++
		}
	}
	return n
}

// shard implements [scenario.Cloud] for one shard.
type shard struct {
	*cloud
	zone string
}

var _ scenario.Cloud = shard{}

// find returns the instances in the shard's zone for which match is true, except those that are ending.
func (s shard) find(match func(compute.Instance) bool) []string {
	return s.findIn([]string{"PROVISIONING", "RUNNING"}, match)
}

// findIn returns the instances in the shard's zone that have one of the statuses, and for which match is true.
func (s shard) findIn(statuses []string, match func(compute.Instance) bool) (ids []string) {
	for _, i := range s.Compute.Instances() {
		if i.Zone == s.zone && slices.Contains(statuses, fmt.Sprint(i.Body["status"])) && match(i) {
			ids = append(ids, guest.ID(i.ID))
		}
	}
	slices.Sort(ids)
	return ids
}

// Workers implements [scenario.Cloud].
func (s shard) Workers() []string { return s.find(worker) }

// asleep returns the workers that are stopped or suspended.
func (s shard) asleep() []string { return s.findIn([]string{"TERMINATED", "SUSPENDED"}, worker) }

func worker(i compute.Instance) bool { return i.Label("nstance-group") != "" }

// Servers implements [scenario.Cloud].
func (s shard) Servers() []string {
	return s.find(func(i compute.Instance) bool { return i.Label("nstance-server") == s.zone })
}

// types returns the machine types of the VMs, sorted.
func (s shard) types() (types []string) {
	for _, id := range s.Workers() {
		link := fmt.Sprint(s.instance(id).Body["machineType"])
		types = append(types, link[strings.LastIndexByte(link, '/')+1:])
	}
	slices.Sort(types)
	return types
}

// instance returns the instance whose number is the given ID.
func (s shard) instance(id string) (found compute.Instance) {
	for _, i := range s.Compute.Instances() {
		if guest.ID(i.ID) == id {
			return i
		}
	}
	return found
}

// Kill implements [scenario.Cloud]. A killed VM still exists, but is stopped.
func (s shard) Kill(id string) { s.Compute.End(s.instance(id).Path, "The guest crashed.") }

// vanish deletes an instance without a delete operation. Neither the server nor the instance group gets a notice of the
// deletion.
func (s shard) vanish(id string) { s.Compute.Vanish(s.instance(id).Path) }

// Interrupt implements [scenario.Cloud].
func (s shard) Interrupt(id string, after time.Duration) error {
	i := s.instance(id)
	if scheduling, _ := i.Body["scheduling"].(map[string]any); scheduling["provisioningModel"] != "SPOT" {
		return fmt.Errorf("%s is not a Spot VM: %v", id, scheduling)
	}
	s.Compute.Preempt(i.Path, after)
	return nil
}

// Maintain implements [scenario.Cloud].
func (s shard) Maintain(id string, begins time.Time) { s.Compute.Maintain(s.instance(id).Path, begins) }

// Dial implements [scenario.Cloud].
func (s shard) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	servers := s.Servers()
	if len(servers) == 0 {
		return nil, errors.New("there is no server")
	}
	return s.machines.DialVPC(ctx, s.instance(servers[0]).Network(), network, address)
}

// leader returns the ID of the server that reports at /leader that it leads, or "" if no server does.
func (s shard) leader() string {
	for _, id := range s.Servers() {
		i := s.instance(id)
		address, _ := i.Interface()["networkIP"].(string)
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: s.Dial}}
		answer, err := client.Get("http://" + net.JoinHostPort(address, "8990") + "/leader")
		if err != nil {
			continue
		}
		if _ = answer.Body.Close(); answer.StatusCode == http.StatusOK {
			return id
		}
	}
	return ""
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

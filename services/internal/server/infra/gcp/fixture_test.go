package gcp

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const (
	project   = "p"
	zone      = "us-central1-a"
	instances = "projects/p/zones/us-central1-a/instances/"
	subnets   = "projects/p/regions/us-central1/subnetworks/"
	leaderIP  = "10.9.0.5"
)

// testCloud is a fake cloud with two subnets and an image.
type testCloud struct {
	t      *testing.T
	fake   *compute.Compute
	server *rest.Server
	url    *url.URL
	ahead  atomic.Int64 // of the real clock

	keyReads atomic.Int64 // of the keys of identity tokens
	noKeys   atomic.Bool  // they cannot be read
}

func newTestCloud(t *testing.T) *testCloud {
	t.Helper()
	c := &testCloud{t: t, fake: compute.New()}
	c.fake.Now = c.now
	c.fake.AddZone(project, zone)
	c.fake.AddImage("debian-cloud", "debian-12-v1", "debian-12")
	for name, block := range map[string]string{"subnet-a": "10.0.0.0/20", "subnet-b": "10.0.16.0/20"} {
		c.fake.Do(func() {
			c.fake.Put(subnets+name, compute.JSON(fmt.Sprintf(`{"ipCidrRange": %q, "secondaryIpRanges": [
				{"rangeName": "leader", "ipCidrRange": "10.9.0.0/28"}]}`, block)))
		})
	}
	if c.fake.Handlers()["compute.subnetworks.get"] == nil {
		c.fake.Add(compute.Kind{Collection: "subnetworks", Type: "subnetwork", Methods: []string{"get"}})
	}
	var err error
	if c.server, err = rest.New("compute", "v1", c.fake.Handlers(), nil); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", c.server)
	mux.HandleFunc("/oauth2/v1/certs", func(w http.ResponseWriter, r *http.Request) {
		c.keyReads.Add(1)
		if c.noKeys.Load() {
			http.Error(w, "try later", http.StatusServiceUnavailable)
			return
		}
		credentials.IdentityKeys(w, r)
	})
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	if c.url, err = url.Parse(web.URL); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *testCloud) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// RoundTrip sends each request for Google's API to the fake of Compute Engine instead.
func (c *testCloud) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = c.url.Scheme, c.url.Host
	return http.DefaultTransport.RoundTrip(r)
}

// open makes a provider. change may modify its configuration.
func (c *testCloud) open(change func(*Config)) *Provider {
	c.t.Helper()
	cfg := Config{Project: project, Zone: zone, Now: c.now,
		Access: googlecloud.Access{Client: &http.Client{Transport: googlecloud.Record(c)}},
		Sleep: func(ctx context.Context, d time.Duration) error {
			c.ahead.Add(int64(d))
			return ctx.Err()
		}}
	if change != nil {
		change(&cfg)
	}
	p, err := New(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

var sequence atomic.Int64

func (c *testCloud) request() infra.CreateRequest {
	c.t.Helper()
	id, err := ident.NewID("tst", c.now(), strings.NewReader(fmt.Sprintf("%08d", sequence.Add(1))))
	if err != nil {
		c.t.Fatal(err)
	}
	return infra.CreateRequest{
		Tags: infra.Tags{Owner: infra.Owner{Cluster: "c1", Shard: "s1"}, Tenant: "default", Instance: id, Term: 1,
			Group: "g", Template: "t", Kind: "tst", CreatedAt: c.now().UTC().Truncate(time.Millisecond)},
		InstanceType: "e2-small", Subnet: "subnet-a", Args: bootDisk(), Userdata: []byte("#!/bin/sh\n"),
	}
}

func bootDisk() map[string]any {
	return map[string]any{"disks": []any{map[string]any{"initializeParams": map[string]any{
		"sourceImage": "projects/debian-cloud/global/images/family/debian-12"}}}}
}

func (c *testCloud) create(p *Provider, req infra.CreateRequest) infra.VM {
	c.t.Helper()
	vm, err := p.Create(c.t.Context(), req)
	if err != nil {
		c.t.Fatal(err)
	}
	return vm
}

// setRoom limits how many VMs can run, including those that run.
func (c *testCloud) setRoom(vms int) {
	c.fake.Repair()
	for _, kind := range []string{"insert", "start", "resume"} {
		c.fake.Fail(compute.Fault{Type: kind, Collection: "instances", Failure: compute.Stockout(),
			Matches: func(*compute.Resource) bool {
				running := 0
				for _, r := range c.fake.All("", "instances") {
					if r.Body["status"] == "RUNNING" {
						running++
					}
				}
				return running >= vms
			}})
	}
}

// disks identifies the disks of a VM.
func (c *testCloud) disks(t *testing.T, vm infra.VM) string {
	t.Helper()
	var ids []string
	c.fake.Do(func() {
		for _, disk := range compute.Objects(c.fake.Find(instances + vm.ProviderID).Body["disks"]) {
			ids = append(ids, fmt.Sprint(c.fake.Find(fmt.Sprint(disk["source"])).ID))
		}
	})
	return strings.Join(ids, " ")
}

// count returns the number of all instances, including those that the provider did not make.
func (c *testCloud) count() (n int) {
	c.fake.Do(func() { n = len(c.fake.All("", "instances")) })
	return n
}

// addServer adds a machine that the provider has not made, and returns its ID.
func (c *testCloud) addServer(name string) (id string) {
	c.fake.Do(func() {
		r := c.fake.Put(instances+name, compute.JSON(`{"status": "RUNNING", "metadata": {}, "networkInterfaces": [{
			"name": "nic0", "subnetwork": "`+subnets+`subnet-a", "networkIP": "10.0.0.`+
			fmt.Sprint(200+sequence.Add(1)%50)+`", "fingerprint": "AAAA"}]}`))
		id = fmt.Sprint(r.ID)
	})
	return id
}

func wantClass(t *testing.T, what string, err error, class infra.Class, parts ...string) {
	t.Helper()
	if infra.ClassOf(err) != class {
		t.Errorf("%s: got error %v of class %q, want class %q", what, err, infra.ClassOf(err), class)
	}
	for _, w := range parts {
		if !strings.Contains(fmt.Sprint(err), w) {
			t.Errorf("%s: error %v does not speak of %q", what, err, w)
		}
	}
}

// delay is the deregistration delay of the backend services that balance makes.
const delay = 40 * time.Second

// balance makes an instance group, and a backend service with two forwarding rules. The function set makes an instance
// healthy or unhealthy for the second forwarding rule.
func (c *testCloud) balance(group, service string) (set func(vm infra.VM, healthy bool)) {
	const region = "projects/p/regions/us-central1/"
	unhealthy := map[string]bool{}
	c.fake.Do(func() {
		backend := c.fake.Put("projects/p/zones/us-central1-a/instanceGroups/"+group, map[string]any{"size": 0}).Link()
		link := c.fake.Put(region+"backendServices/"+service, map[string]any{
			"backends":           []any{map[string]any{"group": backend}},
			"connectionDraining": map[string]any{"drainingTimeoutSec": int(delay.Seconds())}}).Link()
		for _, ip := range []string{"203.0.113.1", "203.0.113.2"} {
			c.fake.Put(region+"forwardingRules/"+strings.ReplaceAll(ip, ".", "-"),
				map[string]any{"backendService": link, "IPAddress": ip})
		}
		c.fake.Healthy = func(i compute.Instance, forwarded string) bool {
			return forwarded != "203.0.113.2" || !unhealthy[i.Name]
		}
	})
	return func(vm infra.VM, healthy bool) {
		c.fake.Do(func() { unhealthy[vm.Tags.Instance.String()] = !healthy })
	}
}

func shardWith(balancer string, services ...string) *config.Shard {
	shard := &config.Shard{LoadBalancers: map[string]config.LoadBalancer{"web": {Provider: "gcp"}}}
	lb := shard.LoadBalancers["web"]
	lb.InstanceGroupName, lb.BackendServiceNames = balancer, services
	shard.LoadBalancers["web"] = lb
	shard.Server.SubnetPools = map[string][]string{"main": {"subnet-a"}}
	return shard
}

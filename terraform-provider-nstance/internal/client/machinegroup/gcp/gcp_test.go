package gcp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	api "google.golang.org/api/compute/v1"
	"google.golang.org/api/option"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/gcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const (
	project = "p"
	zone    = "us-central1-a"
	subnet  = "projects/p/regions/us-central1/subnetworks/servers"
	name    = "solo-server"
)

// fake is a fake of Compute Engine with one managed instance group.
type fake struct {
	*compute.Compute
	client  *api.Service
	now     time.Time
	healthy bool
}

func start(t *testing.T) (*fake, machinegroup.Group) {
	t.Helper()
	f := &fake{Compute: compute.New(), now: time.Now(), healthy: true}
	f.Now = func() time.Time { return f.now }
	f.Healthy = func(compute.Instance, string) bool { return f.healthy }
	f.AddZone(project, zone)
	f.AddImage("debian-cloud", "debian-12-v1", "debian-12")
	f.Do(func() {
		f.Put(subnet, compute.JSON(`{"ipCidrRange": "10.0.0.0/24", "network": "projects/p/global/networks/n"}`))
	})
	server, err := rest.New("compute", "v1", f.Handlers(), credentials.Identify)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials.Write(t, project))
	t.Setenv("GOOGLE_CLOUD_PROJECT", "")
	t.Setenv("GOOGLE_COMPUTE_CUSTOM_ENDPOINT", web.URL+"/compute/v1/")
	f.client, err = api.NewService(t.Context(), option.WithEndpoint(web.URL+"/compute/v1/"),
		option.WithHTTPClient(&http.Client{Transport: token{}}))
	if err != nil {
		t.Fatal(err)
	}
	group, err := gcp.Cloud().Open(t.Context(), machinegroup.Place{Kind: "gcp", Name: name, Zone: zone}, cloud.Access{})
	if err != nil {
		t.Fatal(err)
	}
	return f, group
}

// token sends the token of a service account with each request.
type token struct{}

func (token) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+credentials.Token(credentials.Account))
	return http.DefaultTransport.RoundTrip(r)
}

// template makes an instance template.
func (f *fake) template(t *testing.T, name, machineType string) string {
	t.Helper()
	_, err := f.client.RegionInstanceTemplates.Insert(project, "us-central1", &api.InstanceTemplate{Name: name,
		Properties: &api.InstanceProperties{MachineType: machineType, Metadata: &api.Metadata{},
			Disks: []*api.AttachedDisk{{Boot: true, AutoDelete: true,
				InitializeParams: &api.AttachedDiskInitializeParams{
					SourceImage: "projects/debian-cloud/global/images/family/debian-12"}}},
			NetworkInterfaces: []*api.NetworkInterface{{Subnetwork: subnet}}}}).Do()
	if err != nil {
		t.Fatal(err)
	}
	f.now = f.now.Add(time.Second)
	return "projects/p/regions/us-central1/instanceTemplates/" + name
}

func TestLook(t *testing.T) {
	f, group := start(t)
	if got := group.String(); got != "managed instance group solo-server in us-central1-a of project p" {
		t.Errorf("the group is described as %q", got)
	}
	if _, err := group.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("a group that does not exist: %v", err)
	}
	// look calls Look until the state is the wanted one, and lets a second pass in between.
	look := func(what string, want func(machinegroup.State) bool) machinegroup.State {
		t.Helper()
		var got machinegroup.State
		for range 20 {
			f.now = f.now.Add(time.Second)
			var err error
			if got, err = group.Look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if want(got) {
				return got
			}
		}
		t.Fatalf("%s: the state is %+v", what, got)
		return got
	}
	current := func(s machinegroup.State) bool { return s.Current && s.Refusal == "" && s.Doing == "" }
	refused := func(s machinegroup.State) bool {
		return !s.Current && s.Refusal == compute.Stockout().Error() &&
			strings.HasSuffix(s.Doing, " is CREATING")
	}

	f.template(t, "small", "e2-small")
	health := "projects/p/global/healthChecks/server"
	f.Do(func() { f.Put(health, map[string]any{}) })
	_, err := f.client.InstanceGroupManagers.Insert(project, zone, &api.InstanceGroupManager{Name: name,
		BaseInstanceName: name, TargetSize: 1, Versions: []*api.InstanceGroupManagerVersion{{
			InstanceTemplate: "projects/p/regions/us-central1/instanceTemplates/small"}},
		AutoHealingPolicies: []*api.InstanceGroupManagerAutoHealingPolicy{{HealthCheck: health, InitialDelaySec: 600}},
		UpdatePolicy:        &api.InstanceGroupManagerUpdatePolicy{Type: "PROACTIVE", MinimalAction: "REPLACE"}}).Do()
	if err != nil {
		t.Fatal(err)
	}
	first := look("a new group", current).Machine

	// The zone has no room for the new machine, and has room later.
	f.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.Stockout()})
	roll := func(template string) {
		t.Helper()
		if _, err := f.client.InstanceGroupManagers.Patch(project, zone, name, &api.InstanceGroupManager{
			Versions: []*api.InstanceGroupManagerVersion{{InstanceTemplate: template}}}).Do(); err != nil {
			t.Fatal(err)
		}
	}
	roll(f.template(t, "medium", "e2-medium"))
	look("no room", refused)
	f.Repair()
	f.healthy = false
	look("an unhealthy machine", func(s machinegroup.State) bool {
		return !s.Current && s.Refusal == "" && strings.HasSuffix(s.Doing, " is VERIFYING")
	})
	f.healthy = true
	if second := look("after the roll", current).Machine; second == first || !strings.HasPrefix(second, name+"-") {
		t.Errorf("after the roll the machine is %q, before it was %q", second, first)
	}
}

func TestOpen(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials.Write(t, ""))
	t.Setenv("GOOGLE_CLOUD_PROJECT", "")
	for what, place := range map[string]machinegroup.Place{"project": {Name: name, Zone: zone},
		"zone": {Name: name, Project: project}} {
		if _, err := gcp.Cloud().Open(t.Context(), place, cloud.Access{}); err == nil ||
			!strings.Contains(err.Error(), what) {
			t.Errorf("without a %s: %v", what, err)
		}
	}
}

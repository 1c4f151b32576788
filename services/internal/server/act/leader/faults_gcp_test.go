package leader_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/filegen"
	"github.com/nstance-kit/nstance/services/internal/server/infra/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/kms"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

const gcpZone, gcpKey = "us-central1-a", "projects/p/locations/us-central1/keyRings/r/cryptoKeys/disks"

// googleCloud is a fake of Compute Engine that answers without a network, so that it works in a synctest bubble.
type googleCloud struct {
	*compute.Compute
	server *rest.Server
}

func newGoogleCloud(t *testing.T) googleCloud {
	t.Helper()
	c := googleCloud{Compute: compute.New()}
	c.Rates = compute.DocumentedRates()
	c.AddZone("p", gcpZone)
	c.AddImage("p", "base-1", "base")
	c.Do(func() {
		c.Put("projects/p/regions/us-central1/subnetworks/a", map[string]any{"ipCidrRange": "10.0.0.0/20"})
	})
	var err error
	if c.server, err = rest.New("compute", "v1", c.Handlers(), nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// RoundTrip implements http.RoundTripper.
func (c googleCloud) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	defer func() {
		if cause := recover(); cause == http.ErrAbortHandler { //nolint:errorlint // the value of the panic
			err = errors.New("the connection was cut")
		} else if cause != nil {
			panic(cause)
		}
	}()
	if r = r.Clone(r.Context()); r.Body == nil {
		r.Body = http.NoBody // as on a server
	}
	recorder := httptest.NewRecorder()
	c.server.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// types returns the machine types of the VMs, sorted.
func (c googleCloud) types() (types []string) {
	for _, i := range c.Instances() {
		link := fmt.Sprint(i.Body["machineType"])
		types = append(types, link[strings.LastIndexByte(link, '/')+1:])
	}
	slices.Sort(types)
	return types
}

// gcpRenderer renders requests for the fake of Compute Engine.
type gcpRenderer struct {
	*shard
	disk map[string]any
}

func (r gcpRenderer) Images() map[string]string { return nil }

func (r gcpRenderer) Render(ctx context.Context, group config.Group, rec record.Instance) (filegen.Machine, error) {
	m, err := r.shard.Render(ctx, group, rec)
	m.Args = map[string]any{"disks": []any{r.disk}}
	return m, err
}

// ofType returns a fault for inserts of VMs with a machine type: the cloud accepts such an insert, and its operation
// then fails.
func ofType(machineType string, failure *compute.Failure) compute.Fault {
	matches := func(r *compute.Resource) bool {
		return strings.HasSuffix(fmt.Sprint(r.Body["machineType"]), "/"+machineType)
	}
	return compute.Fault{Type: "insert", Collection: "instances", Failure: failure, Matches: matches}
}

// TestFaultsOfGoogleCloud runs a leader that creates two VMs through Google's SDK. Each case has a different fault of
// the cloud. The group's first instance type is e2-small, and the second is e2-medium.
func TestFaultsOfGoogleCloud(t *testing.T) {
	const small, medium = "e2-small", "e2-medium"
	for name, test := range map[string]struct {
		fault func(c googleCloud)
		disk  map[string]any // in addition to the image
		want  []string
		// alert is a part of the text of the group's alert during the fault. "" means that there is no alert.
		alert string
		// mend ends the cloud's fault, so that the leader creates VMs of the first type.
		mend func(c googleCloud)
	}{
		"none": {func(googleCloud) {}, nil, []string{small, small}, "", nil},
		"stockout in one machine type": {func(c googleCloud) { c.Fail(ofType(small, compute.Stockout())) }, nil,
			[]string{medium, medium}, "", nil},
		"quota of one machine type": {func(c googleCloud) { c.Fail(ofType(small, compute.QuotaExceeded("E2_CPUS"))) },
			nil, []string{medium, medium}, "", nil},
		"stockout in the zone": {func(c googleCloud) {
			c.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.Stockout()})
		}, nil, nil, "e2-small in a: refused lately: create", func(c googleCloud) { c.Repair() }},
		"quota of the project": {func(c googleCloud) {
			c.Fail(compute.Fault{Type: "insert", Collection: "instances", Failure: compute.QuotaExceeded("CPUS")})
		}, nil, nil, "(quota CPUS)", func(c googleCloud) { c.Repair() }},
		"late failure without a reason": {func(c googleCloud) {
			c.Fail(ofType(small, &compute.Failure{Code: "INTERNAL_ERROR", Message: "Internal error.",
				Status: http.StatusInternalServerError}))
		}, nil, []string{medium, medium}, "", nil},
		"lost answers": {func(c googleCloud) {
			for range 2 {
				c.server.LoseAnswer("compute.instances.insert")
			}
		}, nil, []string{small, small}, "", nil},
		"rate of the project": {func(c googleCloud) {
			c.Do(func() { c.Rates["Queries"] = 0 })
		}, nil, nil, "quota Queries", func(c googleCloud) { c.Do(func() { c.Rates = nil }) }},
		"key that cannot be used": {func(c googleCloud) {
			c.Do(func() { c.UseKey = func(name string) error { return kms.New().Use(name, "x") } })
		}, map[string]any{"diskEncryptionKey": map[string]any{"kmsKeyName": gcpKey}}, nil,
			"error when using key " + gcpKey,
			func(c googleCloud) { c.Do(func() { c.UseKey = func(string) error { return nil } }) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 0, func(t *testing.T, s *shard) {
				c := newGoogleCloud(t)
				test.fault(c)
				disk := map[string]any{"initializeParams": map[string]any{
					"sourceImage": "projects/p/global/images/base-1"}}
				for field, value := range test.disk {
					disk[field] = value
				}
				provider, err := gcp.New(t.Context(), gcp.Config{Project: "p", Zone: gcpZone,
					Access: googlecloud.Access{Client: &http.Client{Transport: googlecloud.Record(c)}}})
				if err != nil {
					t.Fatal(err)
				}
				s.Executor.Provider, s.Executor.Renderer = provider, gcpRenderer{s, disk}
				g := config.Group{GroupKey: workers, Static: true, Kind: "wrk", Template: "t", Size: 2, MaxSurge: 1,
					InstanceType: small, InstanceTypes: []string{medium}, Subnets: []string{"a"}, InfraHash: "i1"}
				g.MaxUnhealthy, _ = config.ParseLimit("40%")
				s.State.Configure((&config.Shard{}).WithDefaults(), map[config.GroupKey]config.Group{workers: g})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s.env.Go("loop", func() { _ = s.Loop.Run(ctx, s.wake) })
				time.Sleep(2 * time.Minute) // fake time
				if got := c.types(); !slices.Equal(got, test.want) {
					t.Errorf("the VMs have the types %v, want %v", got, test.want)
				}
				alerts := ""
				for _, alert := range s.State.Standing(workers.Tenant) {
					if alert.Kind != plan.AlertLateRegistration { // the VMs have no agents
						alerts += alert.Message + "\n"
					}
				}
				if test.alert == "" && alerts != "" || !strings.Contains(alerts, test.alert) {
					t.Errorf("the alerts are %q, want %q", alerts, test.alert)
				}
				if test.mend == nil {
					return
				}
				test.mend(c)
				want := []string{small, small}
				for range 600 { // The longest backoff is five minutes.
					if slices.Equal(c.types(), want) {
						return
					}
					time.Sleep(time.Second)
				}
				t.Errorf("when the cloud is right again, the VMs have the types %v, want %v", c.types(), want)
			})
		})
	}
}

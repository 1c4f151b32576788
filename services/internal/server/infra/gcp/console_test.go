package gcp

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/compute"
	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/credentials"
)

// printer is a machine that has written one line to its console.
type printer struct{ text string }

func (p printer) Start(compute.Instance) (compute.Machine, error) { return p, nil }
func (p printer) Changed()                                        {}
func (p printer) Console() string                                 { return p.text }
func (p printer) Stop()                                           {}

// TestConsoles checks that readConsoles returns the consoles of a shard's servers, and of no other machine.
func TestConsoles(t *testing.T) {
	google, err := fakegcp.New(zone)
	if err != nil {
		t.Fatal(err)
	}
	google.Compute.Machines = printer{"nstance-server: --unknown-flag"}
	server := httptest.NewServer(google)
	t.Cleanup(server.Close)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials.Write(t, fakegcp.Project))
	for name, value := range fakegcp.Environment(server.URL) {
		t.Setenv(name, value)
	}
	const path = "projects/" + fakegcp.Project + "/zones/" + zone + "/instances/"
	for name, shard := range map[string]string{"one": "s1", "two": "s2"} {
		google.Compute.Do(func() {
			google.Compute.Put(path+name, compute.JSON(`{"status": "RUNNING", "labels": {"nstance-cluster": "c1",
				"nstance-server": "`+shard+`"}}`))
		})
		if err := google.Compute.Boot(path + name); err != nil {
			t.Fatal(err)
		}
	}
	access, err := googlecloud.Open(t.Context(), cloud.Federation{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(t.Context(), Config{Project: fakegcp.Project, Zone: zone, Access: access})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := p.ReadConsole(t.Context(), infra.VM{ProviderID: "one"}); err != nil ||
		!strings.Contains(string(text), "--unknown") {
		t.Errorf("console %q, %v", text, err)
	}
	found, err := readConsoles(t.Context(), &config.Shard{Cluster: config.Cluster{ID: "c1"},
		Server: config.Server{Shard: "s1", Provider: config.Provider{Zone: zone}}})
	if err != nil || len(found) != 1 || found[0].State != "RUNNING" || !strings.Contains(found[0].Output, "--unknown") {
		t.Errorf("consoles %+v, %v", found, err)
	}
}

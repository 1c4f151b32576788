package admin

import (
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra/gcp"
)

// TestDoctorTellsWhatSingleCreatesCost checks that doctor says how long the requests for all VMs take without batches.
func TestDoctorTellsWhatSingleCreatesCost(t *testing.T) {
	a := &app{}
	a.Clouds = []infra.Cloud{aws.Cloud(), gcp.Cloud()}
	for _, c := range []struct {
		kind        string
		size        int
		attestation *config.Attestation
		want        string
	}{
		{"aws", 1005, nil, "1005 lost VMs are requested in 8m20s"},
		{"aws", 1005, &config.Attestation{}, "8m20s"},
		{"aws", 1005, &config.Attestation{Batches: true}, "one call creates up to 128 VMs"},
		{"aws", 10, nil, ""},
		{"gcp", 1005, nil, ""},
		{"gcp", 1005, &config.Attestation{Batches: true}, "one call creates up to 128 VMs"},
		{"gcp", 2000, nil, "2000 lost VMs are requested in 20s"},
		{"mock", 2000, nil, ""},
	} {
		shard := &config.Shard{Groups: map[string]map[string]config.GroupSpec{"default": {"workers": {Size: &c.size}}}}
		shard.Server.Provider.Kind, shard.Server.Attestation = c.kind, c.attestation
		found := a.checkCreates(shard)
		switch {
		case c.want == "" && len(found) == 0:
		case len(found) != 1 || found[0].Status != ok || !strings.Contains(found[0].Result, c.want) || c.want == "":
			t.Errorf("%+v: %v", c, found)
		}
	}
}

package libvirt

import (
	"context"
	"os"
	"strings"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/libvirt"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns the infra.Cloud of hosts with libvirt.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: openProvider, Identity: identity}
}

func openProvider(_ context.Context, env infra.Env) (infra.Provider, error) {
	options, problems := contract.ParseOptions(env.Shard.Server.Provider.Options)
	if err := infra.JoinProblems(problems, "server", "provider", "options"); err != nil {
		return nil, infra.Wrap(infra.Invalid, "open the provider", err)
	}
	return New(Config{Options: options, Log: env.Log}), nil
}

// productUUID is the file with the UUID of this machine. If libvirt runs the machine, this is the UUID of its domain.
const productUUID = "/sys/class/dmi/id/product_uuid"

// identity reads the UUID of this machine from its firmware. If the machine is not a VM on one of the provider's hosts,
// none of these hosts knows the UUID.
func identity(context.Context, infra.Env) (infra.Machine, error) {
	text, err := os.ReadFile(productUUID)
	if err != nil {
		return infra.Machine{}, infra.Errorf(infra.Indeterminate, "identify this machine", "%w", err)
	}
	return infra.Machine{ID: strings.ToLower(strings.TrimSpace(string(text)))}, nil
}

package proxmox

import (
	"context"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/proxmox"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns the infra.Cloud of clusters of Proxmox VE.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: openProvider, Identity: identity}
}

func openProvider(_ context.Context, env infra.Env) (infra.Provider, error) {
	options, problems := contract.ParseOptions(env.Shard.Server.Provider.Options)
	if err := infra.JoinProblems(problems, "server", "provider", "options"); err != nil {
		return nil, infra.Wrap(infra.Invalid, "open the provider", err)
	}
	return New(Config{Options: options, Log: env.Log, Throttled: env.Throttled})
}

// identity returns no ID: a VM cannot find out its VMID, and a VMID would not suffice, because VMIDs can be used again.
func identity(context.Context, infra.Env) (infra.Machine, error) { return infra.Machine{}, nil }

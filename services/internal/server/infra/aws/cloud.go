package aws

import (
	"context"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns the infra.Cloud of AWS. Its VMs are EC2 instances.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: openProvider, Identity: identify, Member: openMember,
		Consoles: readConsoles}
}

func openProvider(ctx context.Context, env infra.Env) (infra.Provider, error) {
	cfg, err := SDK(ctx, env.Shard.Server.Provider, env.Throttled)
	if err != nil {
		return nil, err
	}
	return Open(cfg, env.Shard, env.Log)
}

func identify(ctx context.Context, env infra.Env) (infra.Machine, error) {
	cfg, err := SDK(ctx, env.Shard.Server.Provider, env.Throttled)
	if err != nil {
		return infra.Machine{}, err
	}
	id, err := MachineID(ctx, NewIMDS(cfg))
	return infra.Machine{ID: id, Named: true}, err
}

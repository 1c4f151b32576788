package tmux

import (
	"context"
	"fmt"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/tmux"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns the infra.Cloud of the tmux provider.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: openProvider, Identity: identity}
}

func openProvider(_ context.Context, env infra.Env) (infra.Provider, error) {
	options, problems := contract.ParseOptions(env.Shard.Server.Provider.Options)
	if err := infra.JoinProblems(problems, "server", "provider", "options"); err != nil {
		return nil, infra.Wrap(infra.Invalid, "open the provider", err)
	}
	return New(Config{Options: options, Logger: env.Log})
}

func identity(context.Context, infra.Env) (infra.Machine, error) {
	id, err := MachineID()
	if err != nil {
		return infra.Machine{}, fmt.Errorf("identify this process: %w", err)
	}
	return infra.Machine{ID: id}, nil
}

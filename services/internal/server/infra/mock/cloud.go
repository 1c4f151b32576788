package mock

import (
	"context"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/mock"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns a cloud with the given provider. The server runs on the machine with the ID machineID.
func Cloud(provider infra.Provider, machineID string) infra.Cloud {
	return infra.Cloud{Config: contract.Block,
		Open:     func(context.Context, infra.Env) (infra.Provider, error) { return provider, nil },
		Identity: func(context.Context, infra.Env) (infra.Machine, error) { return infra.Machine{ID: machineID}, nil }}
}

package operatorapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// maxTypes is the number of instance types whose sizes are remembered.
const maxTypes = 1000

// GetInstanceType returns the size of an instance type. The provider is asked once for each type, because types do not
// change.
func (s *Service) GetInstanceType(ctx context.Context, req *nstancev1.GetInstanceTypeRequest) (
	*nstancev1.GetInstanceTypeResponse, error) {
	return unary(s, ctx, "describe the instance type", req, (*call).getInstanceType)
}

func (c *call) getInstanceType(req *nstancev1.GetInstanceTypeRequest) (*nstancev1.GetInstanceTypeResponse, error) {
	name := req.GetInstanceType()
	if name == "" {
		return nil, invalid("instance_type", "is missing")
	}
	if err := checkText("instance_type", name, maxText); err != nil {
		return nil, err
	}
	c.mu.Lock()
	known, asked := c.types[name]
	c.mu.Unlock()
	if !asked {
		provider, ok := infra.Capability[infra.InstanceTypes](c.Leader.Leader.Executor.Provider)
		if !ok {
			return nil, status.Error(codes.Unimplemented, "the shard's provider does not describe instance types")
		}
		described, err := provider.DescribeType(c, name)
		switch class := infra.ClassOf(err); {
		case err == nil:
			known = &nstancev1.GetInstanceTypeResponse{Cpus: uint32(described.CPUs),
				MemoryMib: uint64(described.MemoryMiB)}
		case class != infra.NotFound && class != infra.Invalid:
			return nil, err
		}
		c.mu.Lock()
		if c.types == nil || len(c.types) >= maxTypes {
			c.types = map[string]*nstancev1.GetInstanceTypeResponse{}
		}
		c.types[name] = known
		c.mu.Unlock()
	}
	if known == nil {
		return nil, status.Errorf(codes.NotFound, "instance_type: the provider has no type %s", name)
	}
	return known, nil
}

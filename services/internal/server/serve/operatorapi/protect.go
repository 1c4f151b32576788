package operatorapi

import (
	"context"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// ProtectInstance protects an instance, or ends its protection. The planner does not remove a protected instance to
// lower the size, and replaces it only if it must (rule 54). The group's entry in the bucket lists the instance, so
// that later leaders protect it, too.
func (s *Service) ProtectInstance(ctx context.Context, req *nstancev1.ProtectInstanceRequest) (
	*nstancev1.ProtectInstanceResponse, error) {
	return unary(s, ctx, "protect the instance", req, (*call).protectInstance)
}

func (c *call) protectInstance(req *nstancev1.ProtectInstanceRequest) (*nstancev1.ProtectInstanceResponse, error) {
	view, err := c.instance(req.GetInstanceId())
	if err != nil {
		return nil, err
	}
	key, id := c.key(view.Record.Group), view.Record.ID
	protect := !req.GetOff()
	switch {
	case view.Record.OnDemand:
		return nil, invalid("instance_id", "instance %s was created on demand: it is never replaced or chosen", id)
	case protect && (view.Record.State == record.Deleting || view.Record.State == record.Deleted):
		return nil, status.Errorf(codes.FailedPrecondition, "instance_id: instance %s is %s", id, view.Record.State)
	}
	changed := false
	_, err = c.Config.Upsert(c, key, "", func(spec *config.GroupSpec, exists bool) error {
		if !exists {
			return errNoGroup(key)
		}
		changed = slices.Contains(spec.Protected, id.String()) != protect
		if !changed {
			return nil
		}
		spec.Protected = slices.DeleteFunc(c.live(c.Config.Groups()[key].Protected), func(text string) bool {
			return text == id.String()
		})
		if protect {
			spec.Protected = append(spec.Protected, id.String())
		}
		return nil
	})
	if err != nil {
		return nil, c.groupFault(key, err)
	}
	if changed {
		message := "it is no longer protected"
		if protect {
			message = "it is protected from voluntary replacement and from a smaller size"
		}
		c.Log.Info("protection changed", "tenant", key.Tenant, "group", key.Group, "instance", id.String(),
			"operator", c.operator.String(), "protected", protect)
		c.addEvent(record.Event{Kind: record.EventGroupChanged, Group: key.Group, Instance: id.String(),
			Message: message})
	}
	if view, err = c.instance(req.GetInstanceId()); err != nil {
		return nil, err
	}
	return &nstancev1.ProtectInstanceResponse{Instance: c.instanceStatus(view)}, nil
}

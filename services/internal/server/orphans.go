package server

import (
	"context"
)

// handleOrphanConfirmations tells the leader on this server that a person has confirmed the orphans. It runs until ctx
// ends.
func (s *server) handleOrphanConfirmations(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.cfg.ConfirmOrphans:
		}
		l := s.leading.Load()
		if l == nil {
			s.log.Warn("orphans not confirmed", "reason", "this server does not lead")
			continue
		}
		vms := l.leader.State.ConfirmOrphans()
		if len(vms) > 0 {
			s.orphansConfirmed(ctx)
		}
		for _, vm := range vms {
			s.log.Info("orphan confirmed", "instance", vm.Tags.Instance.String(), "tenant", vm.Tags.Tenant, "group",
				vm.Tags.Group, "vm", vm.ProviderID)
		}
		s.log.Info("orphans confirmed", "count", len(vms))
	}
}

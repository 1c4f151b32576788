package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/act/scale"
	"github.com/nstance-kit/nstance/services/internal/server/externalmetric"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/shardconfig"
)

// scaleGroups chooses sizes until ctx ends.
func (s *server) scaleGroups(ctx context.Context, l *leadership, env tasks.Env) error {
	external := externalmetric.New(l.generator.Secret)
	defer external.Close()
	scaler := &scale.Scaler{State: l.leader.State, Record: l.journal.Record, Keep: l.journal.KeepScaling,
		Log: s.log, Env: env, Read: external.Read,
		Resize: func(ctx context.Context, key config.GroupKey, size int) error {
			err := scale.Store(ctx, s.manager, key, size, env.Now())
			if superseded, ok := errors.AsType[*shardconfig.SupersededError](err); ok {
				l.authority.Refuse(superseded.Term)
			}
			return err
		}}
	kind := s.manager.Shard().Server.Provider.Kind
	if slices.ContainsFunc(s.cfg.Clouds, func(c infra.Cloud) bool { return c.Name() == kind && c.Config.Hidden }) {
		scaler.Every = time.Second // nobody waits 15 s to see what a development cloud does
	}
	scaler.Run(ctx)
	return nil
}

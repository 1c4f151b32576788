package server

import (
	"context"
	"errors"

	"github.com/nstance-kit/nstance/services/contract/clusterstate"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/internal/shardconfig"
)

// bucket is the shardconfig.Store of a shard in its bucket.
type bucket struct {
	state *clusterstate.State
	shard string
}

var _ shardconfig.Store = bucket{}

func (b bucket) Config(ctx context.Context) (shardconfig.Document, error) {
	body, token, err := b.state.ReadConfig(ctx, b.shard)
	return shardconfig.Document{Body: body, Token: token}, err
}

func (b bucket) Groups(ctx context.Context) (config.Groups, objstore.Token, config.Problems, error) {
	groups, token, warnings, err := b.state.ReadGroups(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return config.Groups{}, "", nil, err
	}
	return groups, token, warnings, err
}

func (b bucket) PutGroups(ctx context.Context, groups config.Groups, token objstore.Token) (objstore.Token, error) {
	return b.state.WriteGroups(ctx, groups, token)
}

func (b bucket) Applied(ctx context.Context) (shardconfig.Applied, error) {
	applied, err := b.state.ReadApplied(ctx)
	return shardconfig.Applied{Body: applied.Body, Source: objstore.Token(applied.Source), Term: applied.Term}, err
}

func (b bucket) PutApplied(ctx context.Context, applied shardconfig.Applied) error {
	return b.state.WriteApplied(ctx, applied.Body, applied.Source, applied.Term)
}

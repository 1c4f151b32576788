package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/infra"
	"github.com/nstance-kit/nstance/services/internal/observe"
	"github.com/nstance-kit/nstance/services/internal/tasks"
)

const (
	// imagePatience is how long a configuration waits for its images before they are looked up in the background.
	imagePatience = 3 * time.Second
	// imageRetry is when a look-up that failed is tried again.
	imageRetry = time.Minute
	// imageParallel is how many are looked up at a time.
	imageParallel = 8
)

// imageBook holds what the images of a configuration were last found to be. What was never found is the configuration's fallback, and what is not
// found any more stays what it was.
type imageBook struct {
	provider infra.Provider
	env      tasks.Env

	mu    sync.Mutex
	found map[string]foundImage
}

type foundImage struct {
	image config.Image
	id    string
}

// known returns the found image of an unchanged definition.
func (b *imageBook) known(name string, image config.Image) (id string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	have, ok := b.found[name]
	return have.id, ok && reflect.DeepEqual(have.image, image)
}

// ids returns the ID of each image.
func (b *imageBook) ids(shard *config.Shard) map[string]string {
	out := make(map[string]string, len(shard.Images))
	for name, image := range shard.Images {
		id, ok := b.known(name, image)
		if !ok {
			id = image.Fallback
		}
		out[name] = id
	}
	return out
}

// look looks up the images of a configuration, with all set also those that are known. The error tells of each that was not found.
func (b *imageBook) look(ctx context.Context, shard *config.Shard, all bool) error {
	resolver, ok := infra.Capability[infra.Images](b.provider)
	if !ok {
		return nil
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(shard.Images)), func(name string) bool {
		_, known := b.known(name, shard.Images[name])
		return shard.Images[name].Provider != shard.Server.Provider.Kind || known && !all
	})
	errs := make([]error, len(names))
	_ = b.env.ForEach(ctx, len(names), imageParallel, func(ctx context.Context, i int) error {
		image := shard.Images[names[i]]
		query := infra.ImageQuery{Owners: image.Owners, Filters: map[string][]string{}, Sort: image.Sort, Newest: image.Order == "desc"}
		for _, filter := range image.Filters {
			query.Filters[filter.Name] = append(query.Filters[filter.Name], filter.Values...)
		}
		id, err := resolver.Resolve(ctx, query)
		if err != nil {
			errs[i] = fmt.Errorf("look up image %s: %w", names[i], err)
			return nil
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.found[names[i]] = foundImage{image, id}
		return nil
	})
	return errors.Join(append(errs, ctx.Err())...)
}

// lookForImages looks up the images of a configuration and raises what is wrong with them.
func (s *server) lookForImages(ctx context.Context, l *leadership, shard *config.Shard, all bool) error {
	key := observe.ErrorKey{Kind: "images"}
	err := l.images.look(ctx, shard, all)
	if err != nil {
		l.leader.World.Raise(key, err.Error())
		return err
	}
	l.leader.World.Resolve(key)
	return nil
}

// refreshImages looks all images up anew every image_refresh_interval, and soon those that were not found. Nothing rotates by that: an image is
// for the instances made from now on.
func (s *server) refreshImages(ctx context.Context, l *leadership) error {
	looked := s.env.Now()
	for s.env.Sleep(ctx, imageRetry) == nil {
		shard, now := s.manager.Shard(), s.env.Now()
		interval := shard.Server.ImageRefresh.D()
		all := interval > 0 && now.Sub(looked) >= interval
		inTime, cancel := context.WithTimeout(ctx, shard.Server.RequestTimeout.D())
		if err := s.lookForImages(inTime, l, shard, all); err == nil && all {
			looked = now
		}
		cancel()
		s.describe(l)
	}
	return nil
}

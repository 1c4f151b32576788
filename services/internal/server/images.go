package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

const (
	// imagePatience is how long the leader waits for image lookups before it applies a configuration. Lookups that take
	// longer continue in the background.
	imagePatience = 3 * time.Second
	// imageRetry is the delay after which a failed lookup is tried again.
	imageRetry = time.Minute
	// imageParallel is the maximum number of concurrent lookups.
	imageParallel = 8
)

// imageBook holds the last known ID of each image of a configuration. An image that was never found has its fallback
// ID. An image that is no longer found keeps its last ID.
type imageBook struct {
	provider infra.Provider
	env      tasks.Env

	mu      sync.Mutex
	entries map[string]imageEntry
}

// imageEntry is the result of looking up one image definition.
type imageEntry struct {
	image config.Image
	id    string // "" if never found
}

// entry returns the result of looking up an image. ok is false if the image was never looked up with its present
// definition.
func (b *imageBook) entry(name string, image config.Image) (e imageEntry, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok = b.entries[name]
	if !ok || !reflect.DeepEqual(e.image, image) {
		return imageEntry{image: image}, false
	}
	return e, true
}

// imageSelection selects the images to look up.
type imageSelection int

const (
	newImages imageSelection = iota
	missingImages
	allImages
)

// ids returns the last known ID of each image. An image that was never found has its fallback ID.
func (b *imageBook) ids(shard *config.Shard) map[string]string {
	out := make(map[string]string, len(shard.Images))
	for name, image := range shard.Images {
		e, _ := b.entry(name, image)
		out[name] = cmp.Or(e.id, image.Fallback)
	}
	return out
}

// found returns the ID of each image that a look-up has found. It leaves out images that have only a fallback.
func (b *imageBook) found(shard *config.Shard) map[string]string {
	out := map[string]string{}
	for name, image := range shard.Images {
		if e, _ := b.entry(name, image); e.id != "" {
			out[name] = e.id
		}
	}
	return out
}

// noteImages tells the State the current image ID of each group with on_image_change.
func (s *server) noteImages(l *leadership, groups map[config.GroupKey]config.Group) {
	found := l.images.found(s.manager.Shard())
	images := map[config.GroupKey]string{}
	for key, group := range groups {
		if !group.Rollout.OnImageChange || group.Deleted || len(found) == 0 {
			continue
		}
		id, err := l.generator.Image(*group.Wanted(), found)
		if err != nil {
			s.log.Warn("the image of a group is not known", "tenant", key.Tenant, "group", key.Group, "error", err)
			continue
		}
		if id != "" {
			images[key] = id
		}
	}
	l.leader.State.SetImages(groups, images)
}

// queryImages looks up images of a configuration. Its error names each image that was not found.
func (b *imageBook) queryImages(ctx context.Context, shard *config.Shard, which imageSelection) error {
	resolver, ok := infra.Capability[infra.Images](b.provider)
	if !ok {
		return nil
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(shard.Images)), func(name string) bool {
		e, tried := b.entry(name, shard.Images[name])
		return shard.Images[name].Provider != shard.Server.Provider.Kind || which == newImages && tried ||
			which == missingImages && e.id != ""
	})
	errs := make([]error, len(names))
	_ = b.env.ForEach(ctx, len(names), imageParallel, func(ctx context.Context, i int) error {
		image := shard.Images[names[i]]
		query := infra.ImageQuery{Owners: image.Owners, Filters: map[string][]string{}, Sort: image.Sort,
			Newest: image.Order == "desc"}
		for _, filter := range image.Filters {
			query.Filters[filter.Name] = append(query.Filters[filter.Name], filter.Values...)
		}
		id, err := resolver.Resolve(ctx, query)
		if err != nil {
			errs[i] = fmt.Errorf("look up image %s: %w", names[i], err)
			e, _ := b.entry(names[i], image)
			id = e.id
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.entries[names[i]] = imageEntry{image, id}
		return nil
	})
	return errors.Join(errors.Join(errs...), ctx.Err())
}

// resolveImages looks up images of a configuration and raises an alert for those that were not found.
func (s *server) resolveImages(ctx context.Context, l *leadership, shard *config.Shard, which imageSelection) error {
	key := shardstate.ErrorKey{Kind: plan.AlertImages}
	err := l.images.queryImages(ctx, shard, which)
	if err != nil {
		l.leader.State.RaiseError(key, err.Error())
	} else if which != newImages {
		l.leader.State.ResolveError(key)
	}
	return err
}

// refreshImages looks up all images every image_refresh_interval, and missing images every imageRetry. New instances
// use a new image. In groups with on_image_change, the leader also replaces the existing instances.
func (s *server) refreshImages(ctx context.Context, l *leadership) error {
	looked := s.env.Now()
	for s.env.Sleep(ctx, imageRetry) == nil {
		shard, now, which := s.manager.Shard(), s.env.Now(), missingImages
		if interval := shard.Server.ImageRefresh.D(); interval > 0 && now.Sub(looked) >= interval {
			which = allImages
		}
		inTime, cancel := context.WithTimeout(ctx, shard.Server.RequestTimeout.D())
		if err := s.resolveImages(inTime, l, shard, which); err == nil && which == allImages {
			looked = now
		}
		cancel()
		s.describe(l)
		s.noteImages(l, s.manager.Groups())
	}
	return nil
}

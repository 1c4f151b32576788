package infra

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// Images is an optional capability: it looks up a machine image by a query.
type Images interface {
	Resolve(ctx context.Context, q ImageQuery) (string, error)
}

// ImageQuery has the fields of an image entry in the shard configuration.
type ImageQuery struct {
	Owners  []string
	Filters map[string][]string
	Sort    string
	Newest  bool
}

// String describes the query in one line.
func (q ImageQuery) String() string {
	var parts []string
	if len(q.Owners) > 0 {
		parts = append(parts, "owned by "+strings.Join(q.Owners, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(q.Filters)) {
		parts = append(parts, name+" = "+strings.Join(q.Filters[name], " | "))
	}
	return "(" + strings.Join(parts, "; ") + ")"
}

// Image is one of the images that match a query.
type Image struct {
	ID, Name  string
	CreatedAt time.Time
}

// Choose returns the ID of the image that is first in the order of the query. It fails as [NotFound] if there is none.
func (q ImageQuery) Choose(what string, images []Image) (string, error) {
	compare := func(a, b Image) int { return a.CreatedAt.Compare(b.CreatedAt) }
	switch q.Sort {
	case "", "creation-date":
	case "name":
		compare = func(a, b Image) int { return cmp.Compare(a.Name, b.Name) }
	default:
		return "", Errorf(Invalid, what, "images cannot be sorted by %q", q.Sort)
	}
	if len(images) == 0 {
		return "", Errorf(NotFound, what, "no available image matches")
	}
	order := func(a, b Image) int { return cmp.Or(compare(a, b), cmp.Compare(a.ID, b.ID)) }
	if q.Newest {
		return slices.MaxFunc(images, order).ID, nil
	}
	return slices.MinFunc(images, order).ID, nil
}

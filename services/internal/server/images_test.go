package server

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/internal/server/infra/mock"
)

// TestNewImageRolls checks that a leader that finds a new image replaces the VMs of a group with on_image_change. A
// leader whose query fails replaces none, because the fallback does not count as a new image.
func TestNewImageRolls(t *testing.T) {
	r := newTestShard(t)
	var image atomic.Pointer[string]
	found := func(id string) { image.Store(&id) }
	made := make(chan string, 100)
	r.provider = mock.New(mock.Config{Now: time.Now, Script: mock.OnCreate(func(c mock.Call) {
		id, _ := c.Request.Args["image"].(string)
		made <- id
	}), Images: func(infra.ImageQuery) (string, error) {
		if id := *image.Load(); id != "" {
			return id, nil
		}
		return "", infra.NotFound
	}})
	r.configure(func(doc map[string]any) {
		doc["images"] = map[string]any{"debian": map[string]any{"provider": "mock", "fallback": "image-0",
			"filters": []map[string]any{{"name": "name", "values": []string{"debian-*"}}}}}
		doc["defaults"].(map[string]any)["args"] = map[string]any{"image": "{{ .Image.debian }}"}
		doc["groups"] = map[string]any{"default": map[string]any{"g": map[string]any{"template": "t", "size": 2,
			"rollout": map[string]any{"on_image_change": true}}}}
	})
	found("image-1")
	p := r.start(testKey)
	// A leader that ends between a create call and its record leaves the next leader a VM with an unknown image.
	p.await("two recorded VMs", func() bool { return strings.Count(p.log.String(), `"kind":"instance_created"`) == 2 })
	for range 2 {
		if id := <-made; id != "image-1" {
			t.Errorf("a VM was made from %q", id)
		}
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}

	found("")
	p = r.start(testKey)
	p.await("a leader without an image", func() bool {
		return strings.Contains(p.log.String(), "serving as leader")
	})
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	select {
	case id := <-made:
		t.Errorf("a VM was made from %q although no image was found", id)
	default:
	}

	found("image-2")
	p = r.start(testKey)
	p.await("the first VM from the new image", func() bool { return len(made) > 0 })
	if id := <-made; id != "image-2" {
		t.Errorf("a VM was made from %q", id)
	}
}

package sim

import (
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/shardstate"
)

// oldImage is the reason of a replacement because of an outdated image.
const oldImage = "its image is out of date"

// lookUpImages finds the newest image every minute, for the first time some seconds after the takeover.
func (t *term) lookUpImages() {
	w := t.server.world
	for pause := 20 * time.Second; t.env.Sleep(t.scope, pause) == nil; pause = time.Minute {
		now := fmt.Sprintf("image-%d", w.people.image)
		if now == t.image {
			continue
		}
		w.trace("%s finds %s", t.server.process.name, now)
		t.image = now
		for key := range t.groups {
			t.rolloutAt[key] = w.sched.now
		}
		t.noteImage()
	}
}

// noteImage passes the IDs of the groups' images to the State, as the server does after it has looked up images or
// changed the configuration.
func (t *term) noteImage() {
	images := map[config.GroupKey]string{}
	for key := range t.groups {
		if t.image != "" {
			images[key] = t.image
		}
	}
	t.leader.State.SetImages(t.groups, images)
}

// current reports whether an instance has the present configuration and image of its group.
func (t *term) current(g config.Group, d *document) bool {
	image := t.imageOf(g)
	return d.InfraHash == g.InfraHash &&
		(!g.Rollout.OnImageChange || image == "" || d.Image == "" || d.Image == image)
}

// imageOf returns the image that new instances of a group get: the one that the leader found, or that of the good
// configuration to which the group has returned.
func (t *term) imageOf(g config.Group) string {
	if g.RolledBack() {
		return g.Good.Image
	}
	return t.image
}

// checkImage checks a replacement because of an outdated image: the group must have on_image_change, and this leader
// must have found another image.
func (w *World) checkImage(t *term, event shardstate.InstanceEvent) {
	key := config.GroupKey{Tenant: event.Tenant, Group: event.Group}
	g, ok := t.groups[key]
	if changed := t.rolloutAt[key]; !ok || changed.IsZero() || w.sched.now.Sub(changed) < rolloutLag ||
		t.server.slowness() > 0 || w.sched.now.Sub(t.server.pausedUntil) < rolloutLag {
		return
	}
	d := w.bucket.byID[event.Replaces]
	if image := t.imageOf(g); !g.Rollout.OnImageChange || image == "" || d != nil && d.Image == image {
		w.fail(ruleImage, "%s of %s is replaced for its image, on_image_change is %t and the leader has found %q",
			event.Replaces, key, g.Rollout.OnImageChange, image)
	}
}

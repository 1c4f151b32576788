package drain

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// Nodes are marked with the instance that they are while it is there, so that it is known whose they were when it is
// not, after a restart too.

// remover remembers what the removal of Nodes needs between two looks. Losing it costs a few calls more.
type remover struct {
	mu sync.Mutex
	// changed are instances that mirrors told of; some are deleted, and their Nodes may not be marked yet.
	changed map[key]bool
	// busy are the shards that are being asked, asked is when the leader last said that an instance is still there.
	busy  map[string]bool
	asked map[key]time.Time
}

func newRemover() remover {
	return remover{changed: map[key]bool{}, busy: map[string]bool{}, asked: map[key]time.Time{}}
}

// note takes a change from any goroutine.
func (r *remover) note(change shards.Change) {
	if change.Kind == shards.ShardState {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed[key{change.Shard, change.Instance}] = true
}

// nodeChanges wakes the removal when a Node is new or another.
func (c *coordinator) nodeChanges() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake(c.removals) },
		UpdateFunc: func(before, after any) {
			a, aOK := before.(*corev1.Node)
			b, bOK := after.(*corev1.Node)
			if !aOK || !bOK || a.Spec.ProviderID != b.Spec.ProviderID ||
				a.Annotations[v1beta1.InstanceAnnotation] != b.Annotations[v1beta1.InstanceAnnotation] {
				wake(c.removals)
			}
		},
	}
}

// plan says which Nodes are to be marked, and of which instances the leader is to be asked because their Nodes may have
// to go.
type plan struct {
	mark map[string]key // by the Node's name
	ask  map[string]map[key][]*corev1.Node
}

// planNodes is pure. live are the instances that the mirrors know of, by provider ID; dead those that they say are
// deleted. heard are the shards whose word counts.
func planNodes(nodes []*corev1.Node, live, dead map[string]key, heard map[string]bool) plan {
	p := plan{mark: map[string]key{}, ask: map[string]map[key][]*corev1.Node{}}
	for _, node := range nodes {
		id := node.Spec.ProviderID
		if id == "" || !node.DeletionTimestamp.IsZero() {
			continue
		}
		marked, isMarked := parseMark(node.Annotations[v1beta1.InstanceAnnotation])
		if k, ok := live[id]; ok {
			if !isMarked || marked != k {
				p.mark[node.Name] = k
			}
			continue
		}
		k, ok := dead[id]
		if !ok {
			k, ok = marked, isMarked
		}
		if !ok || !heard[k.shard] {
			continue
		}
		if p.ask[k.shard] == nil {
			p.ask[k.shard] = map[key][]*corev1.Node{}
		}
		p.ask[k.shard][k] = append(p.ask[k.shard][k], node)
	}
	return p
}

// parseMark reads "{shard}/{instance}".
func parseMark(s string) (key, bool) {
	shard, instance, ok := strings.Cut(s, "/")
	if !ok || ident.ValidateName(shard) != nil {
		return key{}, false
	}
	if _, err := ident.ParseID(instance); err != nil {
		return key{}, false
	}
	return key{shard, instance}, true
}

// removeNodes marks the Nodes of instances, and removes those whose instances are gone.
func (c *coordinator) removeNodes(ctx context.Context) {
	var list corev1.NodeList
	if err := c.nodes.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		c.Log.Warn("Nodes cannot be listed", "error", err)
		return
	}
	nodes := make([]*corev1.Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	live, dead, heard := c.world()
	p := planNodes(nodes, live, dead, heard)
	for name, k := range p.mark {
		c.mark(ctx, name, k)
	}
	for shard, of := range p.ask {
		if !c.remover.begin(shard) {
			continue
		}
		c.work.Go(func() {
			defer c.remover.end(shard)
			for k, nodes := range of {
				c.removeIfGone(ctx, k, nodes)
			}
		})
	}
}

// world reads the mirrors.
func (c *coordinator) world() (live, dead map[string]key, heard map[string]bool) {
	live, dead, heard = map[string]key{}, map[string]key{}, map[string]bool{}
	for _, id := range c.Shards.IDs() {
		shard, ok := c.Shards.Shard(id)
		if !ok {
			continue
		}
		state := shard.State()
		heard[id] = state.Reachable && state.Synced
		for _, i := range shard.Instances("") {
			if p := i.GetProviderId(); p != "" {
				live[p] = key{id, i.GetInstanceId()}
			}
		}
	}
	c.remover.mu.Lock()
	defer c.remover.mu.Unlock()
	for k := range c.remover.changed {
		shard, ok := c.Shards.Shard(k.shard)
		if !ok {
			delete(c.remover.changed, k)
			continue
		}
		i, ok := shard.Instance(k.instance)
		if !ok || i.GetState() != "deleted" {
			// It is in the list of the living, or will be told of again.
			delete(c.remover.changed, k)
			continue
		}
		if p := i.GetProviderId(); p != "" {
			dead[p] = k
		}
	}
	return live, dead, heard
}

func (r *remover) begin(shard string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[shard] {
		return false
	}
	r.busy[shard] = true
	return true
}

func (r *remover) end(shard string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, shard)
}

// mayAsk limits how often a leader is asked of one instance that it says is there.
func (r *remover) mayAsk(k key, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, at := range r.asked {
		if now.Sub(at) > every {
			delete(r.asked, other)
		}
	}
	if _, ok := r.asked[k]; ok {
		return false
	}
	r.asked[k] = now
	return true
}

func (r *remover) unanswered(k key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.asked, k)
}

func (c *coordinator) mark(ctx context.Context, name string, k key) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{v1beta1.InstanceAnnotation: k.shard + "/" + k.instance}}})
	if err != nil {
		return // of strings
	}
	node := &corev1.Node{}
	node.Name = name
	if err := c.nodes.Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); client.IgnoreNotFound(
		err) != nil && ctx.Err() == nil {
		c.Log.Warn("Node cannot be marked", "node", name, "shard", k.shard, "instance", k.instance, "error", err)
	}
}

// removeIfGone asks the leader of the shard for the instance, and removes the Nodes that were it if there is none.
func (c *coordinator) removeIfGone(ctx context.Context, k key, nodes []*corev1.Node) {
	shard, ok := c.Shards.Shard(k.shard)
	if !ok || !c.remover.mayAsk(k, time.Now()) {
		return
	}
	log := c.Log.With("shard", k.shard, "instance", k.instance)
	answer, err := shard.API().GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: k.instance})
	switch {
	case status.Code(err) == codes.NotFound:
	case err != nil:
		c.remover.unanswered(k)
		log.Warn("server's answer", "call", "ask", "error", err)
		return
	case answer.GetInstance().GetInstanceId() != k.instance, answer.GetInstance().GetState() != "deleted":
		return
	}
	for _, node := range nodes {
		uid := node.UID
		switch err := c.nodes.Delete(ctx, &corev1.Node{ObjectMeta: *node.ObjectMeta.DeepCopy()},
			client.Preconditions{UID: &uid}); {
		case err == nil:
			log.Info("Node of an instance that is gone is removed", "node", node.Name)
		case client.IgnoreNotFound(err) != nil:
			log.Warn("Node cannot be removed", "node", node.Name, "error", err)
		}
	}
}

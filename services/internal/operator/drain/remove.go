package drain

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/operator/shards"
)

// This file annotates Nodes, and removes the Nodes of instances that are gone. The operator annotates the Node of each
// existing instance with the instance's ID. Once the instance is gone, the annotation shows which instance the Node
// belonged to, even after a restart of the operator.

// nodeRemover contains the state of the removal of Nodes. The state is only in memory: if it is lost, the operator
// makes a few additional calls.
type nodeRemover struct {
	mu sync.Mutex
	// changed are the instances about which mirrors have sent a notification. They are needed because an instance may
	// be deleted before its Node was annotated with the instance's ID.
	changed map[key]bool
	// queried maps each instance to the time of the last query about it.
	queried map[key]time.Time
	busy    sync.Map // the IDs of the shards with a running query
}

// recordChange records that an instance has changed. It ignores changes of a shard's state. It is safe for concurrent
// use.
func (r *nodeRemover) recordChange(change shards.Change) {
	if change.Kind == shards.ShardState {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed[key{change.Shard, change.Instance}] = true
}

// nodeChanges returns a handler that wakes the loop of updates for new and changed Nodes.
func (c *coordinator) nodeChanges() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake(c.nodeUpdates) },
		UpdateFunc: func(before, after any) {
			a, aOK := before.(*corev1.Node)
			b, bOK := after.(*corev1.Node)
			if !aOK || !bOK || !equality.Semantic.DeepEqual(a.Spec, b.Spec) ||
				!maps.Equal(a.Annotations, b.Annotations) {
				wake(c.nodeUpdates)
			}
		},
	}
}

// instance is an instance of a mirror.
type instance struct {
	key
	status *nstancev1.InstanceStatus
}

// nodeChange is a change of the Node of an instance.
type nodeChange struct {
	node *corev1.Node
	of   instance
	// mark: the annotation with the instance's ID is missing or wrong.
	mark  bool
	spare spareChange
}

// nodePlan lists the changes of Nodes. For each shard, it also lists the instances about which the leader must be
// asked, because their Nodes may have to be removed.
type nodePlan struct {
	change []nodeChange
	ask    map[string]map[key][]*corev1.Node
}

// planNodes compares Nodes and instances. live and dead map provider IDs to instances: live has the instances in the
// mirrors, and dead has those that were reported as deleted. synced has the shards that are reachable and synced.
func planNodes(nodes []*corev1.Node, live map[string]instance, dead map[string]key, synced map[string]bool) nodePlan {
	p := nodePlan{ask: map[string]map[key][]*corev1.Node{}}
	for _, node := range nodes {
		id := node.Spec.ProviderID
		if id == "" || !node.DeletionTimestamp.IsZero() {
			continue
		}
		marked, isMarked := parseMark(node.Annotations[v1beta1.InstanceAnnotation])
		if i, ok := live[id]; ok {
			change := nodeChange{node, i, !isMarked || marked != i.key, decideSpare(node, i.status)}
			if change.mark || change.spare != noChange {
				p.change = append(p.change, change)
			}
			continue
		}
		k, ok := dead[id]
		if !ok {
			k, ok = marked, isMarked
		}
		if !ok || !synced[k.shard] {
			continue
		}
		if p.ask[k.shard] == nil {
			p.ask[k.shard] = map[key][]*corev1.Node{}
		}
		p.ask[k.shard][k] = append(p.ask[k.shard][k], node)
	}
	return p
}

// parseMark parses an annotation "{shard}/{instance}".
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

// updateNodes annotates the Nodes of instances, keeps pods off those of spares, and removes the Nodes of instances that
// are gone.
func (c *coordinator) updateNodes(ctx context.Context) {
	var list corev1.NodeList
	if err := c.nodes.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		c.Log.Warn("failed to list Nodes", "error", err)
		return
	}
	nodes := make([]*corev1.Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	live, dead, synced := c.readMirrors()
	p := planNodes(nodes, live, dead, synced)
	for _, change := range p.change {
		c.changeNode(ctx, change)
	}
	for shard, of := range p.ask {
		if _, running := c.remover.busy.LoadOrStore(shard, true); running {
			continue
		}
		c.work.Go(func() {
			defer c.remover.busy.Delete(shard)
			for k, nodes := range of {
				c.removeIfGone(ctx, k, nodes)
			}
		})
	}
}

// readMirrors returns the instances of the mirrors, as planNodes needs them.
func (c *coordinator) readMirrors() (live map[string]instance, dead map[string]key, synced map[string]bool) {
	live, dead, synced = map[string]instance{}, map[string]key{}, map[string]bool{}
	for _, shard := range c.Shards.All() {
		id := shard.ID()
		synced[id] = shard.State().Answers()
		for _, i := range shard.Instances("") {
			if p := i.GetProviderId(); p != "" {
				live[p] = instance{key{id, i.GetInstanceId()}, i}
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
			// Remove the instance from changed, because it is not deleted. If it is deleted later, the mirror sends a
			// new notification.
			delete(c.remover.changed, k)
			continue
		}
		if p := i.GetProviderId(); p != "" {
			dead[p] = k
		}
	}
	return live, dead, synced
}

// mayQuery limits the rate of queries about one instance.
func (r *nodeRemover) mayQuery(k key, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for other, at := range r.queried {
		if now.Sub(at) > maxInterval {
			delete(r.queried, other)
		}
	}
	if _, ok := r.queried[k]; ok {
		return false
	}
	r.queried[k] = now
	return true
}

func (r *nodeRemover) allowQuery(k key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.queried, k)
}

// changeNode writes a change of a Node. If that fails, the loop runs again.
func (c *coordinator) changeNode(ctx context.Context, change nodeChange) {
	k, after, patch := change.of.key, change.node.DeepCopy(), client.MergeFrom(change.node)
	if change.mark {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, v1beta1.InstanceAnnotation, k.shard+"/"+k.instance)
	}
	if change.spare != noChange {
		change.spare.apply(after)
		// Another client may change the taints, and the drain may have begun.
		patch = client.MergeFromWithOptions(change.node, client.MergeFromWithOptimisticLock{})
	}
	uncordoned := change.node.Spec.Unschedulable && !after.Spec.Unschedulable
	switch err := c.nodes.Patch(ctx, after, patch); {
	case apierrors.IsConflict(err):
		wake(c.nodeUpdates)
	case client.IgnoreNotFound(err) != nil && ctx.Err() == nil:
		c.Log.Warn("failed to change Node", "node", change.node.Name, "shard", k.shard, "instance", k.instance,
			"error", err)
		time.AfterFunc(retry, func() { wake(c.nodeUpdates) })
	case err == nil && uncordoned:
		c.Log.Info("uncordoned the Node of a spare that is a member now", "node", after.Name, "shard", k.shard,
			"instance", k.instance)
		c.recorder.Eventf(after, nil, corev1.EventTypeNormal, v1beta1.SparePromotedReason, "Uncordon",
			"instance %s was a spare, and is a member of group %s now: uncordoned", k.instance,
			change.of.status.GetGroup())
	}
}

// removeIfGone asks the shard's leader about an instance. If the instance does not exist, removeIfGone removes its
// Nodes.
func (c *coordinator) removeIfGone(ctx context.Context, k key, nodes []*corev1.Node) {
	shard, ok := c.Shards.Shard(k.shard)
	if !ok || !c.remover.mayQuery(k, time.Now()) {
		return
	}
	log := c.Log.With("shard", k.shard, "instance", k.instance)
	answer, err := shard.API().GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: k.instance})
	switch {
	case status.Code(err) == codes.NotFound:
	case err != nil:
		c.remover.allowQuery(k)
		log.Warn("failed to query instance", "error", err)
		return
	case answer.GetInstance().GetInstanceId() != k.instance, answer.GetInstance().GetState() != "deleted":
		return
	}
	for _, node := range nodes {
		uid := node.UID
		switch err := c.nodes.Delete(ctx, &corev1.Node{ObjectMeta: *node.ObjectMeta.DeepCopy()},
			client.Preconditions{UID: &uid}); {
		case err == nil:
			log.Info("removed the Node of a gone instance", "node", node.Name)
		case client.IgnoreNotFound(err) != nil:
			log.Warn("failed to remove Node", "node", node.Name, "error", err)
		}
	}
}

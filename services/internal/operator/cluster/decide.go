package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// Attributes of failure domains.
const (
	zoneAttribute   = "zone"
	regionAttribute = "region"
)

// updateStatus updates the status of the NstanceCluster. The infrastructure exists before the operator runs, so the
// status says from the start that it is provisioned.
func (r *reconciler) updateStatus(infra *v1beta1.NstanceCluster, cluster *clusterv1.Cluster) {
	set := func(kind string, is bool, reason, message string) {
		scope.SetCondition(&infra.Status.Conditions, infra.Generation, r.Now(), kind, is, reason, message)
	}
	_, annotated := infra.Annotations[clusterv1.PausedAnnotation]
	if ptr.Deref(cluster.Spec.Paused, false) || annotated {
		set(v1beta1.PausedCondition, true, v1beta1.PausedReason, "")
		return
	}
	set(v1beta1.PausedCondition, false, v1beta1.NotPausedReason, "")
	infra.Status.Initialization.Provisioned = ptr.To(true)
	infra.Status.ObservedGeneration = infra.Generation
	infra.Status.FailureDomains = r.failureDomains(infra.Status.FailureDomains)
	waits, failing := r.silentShards()
	switch {
	case waits == "":
		set(v1beta1.ShardsReachableCondition, true, v1beta1.ReachableReason, "")
	case failing:
		set(v1beta1.ShardsReachableCondition, false, v1beta1.UnreachableReason, waits)
	default:
		set(v1beta1.ShardsReachableCondition, false, v1beta1.WaitingForShardReason, waits)
	}
	if problem := r.Problems.String(); problem != "" {
		set(v1beta1.ReadyCondition, false, v1beta1.NotReadyReason, scope.ConditionMessage(problem))
		return
	}
	set(v1beta1.ReadyCondition, true, v1beta1.ReadyReason, waits)
}

// silentShards returns a message with the shards whose groups are not known or that do not answer, and with what waits
// for them. The message is empty if there is no such shard. failing is true if an attempt to reach one of them failed.
func (r *reconciler) silentShards() (message string, failing bool) {
	var list []string
	for _, shard := range r.Shards.All() {
		state := shard.State()
		switch {
		case state.Answers():
			continue
		case state.Reachable:
			list = append(list, shard.ID()+" (its groups are being read)")
		case state.Err == "":
			list = append(list, shard.ID()+" (connecting)")
		default:
			failing = true
			list = append(list, shard.ID()+" ("+state.Err+")")
		}
	}
	if len(list) == 0 {
		return "", false
	}
	return "waiting for shards: " + strings.Join(list, ", ") + "; groups without an NstanceMachinePool are imported " +
		"when all shards answer", failing
}

// recordWait records an event about the NstanceCluster if its status newly says that shards do not answer.
func (r *reconciler) recordWait(before, after *v1beta1.NstanceCluster) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1beta1.ShardsReachableCondition)
	is := meta.FindStatusCondition(after.Status.Conditions, v1beta1.ShardsReachableCondition)
	if is == nil || is.Reason != v1beta1.UnreachableReason ||
		was != nil && was.Reason == is.Reason && was.Message == is.Message {
		return
	}
	r.Recorder.Eventf(after, nil, corev1.EventTypeWarning, is.Reason, "Connect", "%s", scope.Truncate(is.Message))
}

// failureDomains returns a failure domain for each shard of the operator. A shard that is unreachable keeps its last
// known zone.
func (r *reconciler) failureDomains(before []clusterv1.FailureDomain) []clusterv1.FailureDomain {
	var out []clusterv1.FailureDomain
	for _, shard := range r.Shards.All() {
		id, state := shard.ID(), shard.State()
		domain := clusterv1.FailureDomain{Name: id}
		for _, had := range before {
			if had.Name == id {
				domain.Attributes = had.Attributes
			}
		}
		if state.Zone != "" || state.Region != "" {
			domain.Attributes = map[string]string{}
			if state.Zone != "" {
				domain.Attributes[zoneAttribute] = state.Zone
			}
			if state.Region != "" {
				domain.Attributes[regionAttribute] = state.Region
			}
		}
		out = append(out, domain)
	}
	return out
}

// markInitialized sets the Cluster's condition ControlPlaneInitialized to true. Until it is true, Cluster API's core
// ignores Nodes. The core sets the condition only if there is a control plane object or a control plane Machine.
// Nstance has neither. Once the condition is true, the core does not change it.
func (r *reconciler) markInitialized(ctx context.Context, cluster *clusterv1.Cluster) error {
	if cluster.Spec.ControlPlaneRef.IsDefined() || cluster.Spec.Topology.IsDefined() ||
		meta.IsStatusConditionTrue(cluster.Status.Conditions, clusterv1.ClusterControlPlaneInitializedCondition) {
		return nil
	}
	before := cluster.DeepCopy()
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	meta.SetStatusCondition(&cluster.Status.Conditions,
		metav1.Condition{Type: clusterv1.ClusterControlPlaneInitializedCondition, Status: metav1.ConditionTrue,
			Reason: clusterv1.ClusterControlPlaneInitializedReason, ObservedGeneration: cluster.Generation})
	// This patch replaces all conditions, so it must fail if another client has changed any.
	err := r.Client.Status().Patch(ctx, cluster, client.MergeFromWithOptions(before,
		client.MergeFromWithOptimisticLock{}))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch status of Cluster %s: %w", r.objectKey(), err)
	}
	return nil
}

// endpointOf returns the address of the API server in a client configuration.
func endpointOf(config *rest.Config) (clusterv1.APIEndpoint, error) {
	text := config.Host
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err == nil && strings.Contains(u.Hostname(), ":") {
		_, err = netip.ParseAddr(u.Hostname())
	}
	if err != nil || u.Hostname() == "" {
		return clusterv1.APIEndpoint{}, fmt.Errorf("address of the API server: %q is not a URL", config.Host)
	}
	port := u.Port()
	if port == "" {
		if port = "443"; u.Scheme == "http" {
			port = "80"
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return clusterv1.APIEndpoint{}, fmt.Errorf("address of the API server: %q has no port",
			net.JoinHostPort(u.Hostname(), port))
	}
	return clusterv1.APIEndpoint{Host: u.Hostname(), Port: int32(n)}, nil
}

// phase is a phase in the life of the managed Cluster.
type phase string

const (
	living phase = "living" // the Cluster exists or is to be created
	ending phase = "ending" // the Cluster is being deleted, or its deletion is not recorded yet
	ended  phase = "ended"  // the Cluster was deleted and stays deleted
)

// phaseInput is everything that determines the phase of the Cluster.
type phaseInput struct {
	// cluster and infra are the Cluster and the NstanceCluster, nil if they do not exist.
	cluster *clusterv1.Cluster
	infra   *v1beta1.NstanceCluster
	// record is the record of a deletion, nil if there is none. It is read only if the Cluster does not exist.
	record *corev1.ConfigMap
	// recreate: the operator was started with --recreate-cluster.
	recreate bool
}

// decidePhase returns the phase of the Cluster. If the Cluster is gone and its NstanceCluster is being deleted, a user
// has deleted the Cluster, because Cluster API deletes the NstanceCluster only together with its Cluster. If this
// deletion has not been recorded yet, the phase is "ending".
func decidePhase(in phaseInput) phase {
	switch {
	case in.cluster != nil && in.cluster.DeletionTimestamp.IsZero():
		return living
	case in.cluster != nil:
		return ending
	case in.recreate:
		return living
	case in.record != nil:
		if _, ok := in.record.Annotations[v1beta1.RecreateAnnotation]; ok {
			return living
		}
		return ended
	case in.infra != nil && !in.infra.DeletionTimestamp.IsZero():
		return ending
	}
	return living
}

// end handles a Cluster that is being deleted. It records the deletion, and reports which shards still have groups or
// machines of the Cluster. Finally, it removes the NstanceCluster's finalizer.
func (r *reconciler) end(ctx context.Context, in phaseInput) (reconcile.Result, error) {
	if err := r.createRecord(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if in.infra != nil && in.infra.DeletionTimestamp.IsZero() {
		waits, err := r.listWaits(ctx)
		if err != nil {
			return reconcile.Result{}, err
		}
		before := in.infra.DeepCopy()
		scope.SetCondition(&in.infra.Status.Conditions, in.infra.Generation, r.Now(), v1beta1.ReadyCondition, false,
			v1beta1.DeletingReason, deletionMessage(waits))
		if err := r.PatchStatus(ctx, before, in.infra); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("patch status of NstanceCluster %s: %w", r.objectKey(), err)
		}
		was := meta.FindStatusCondition(before.Status.Conditions, v1beta1.ReadyCondition)
		if text := deletionMessage(waits); len(waits) > 0 && (was == nil || was.Message != text) {
			r.Recorder.Eventf(in.infra, nil, corev1.EventTypeWarning, v1beta1.DeletingReason, "Delete", "%s",
				scope.Truncate(text))
		}
	}
	if err := r.releaseInfraCluster(ctx, in.infra); err != nil {
		return scope.RetryConflict(err)
	}
	return reconcile.Result{RequeueAfter: endingRecheck}, nil
}

// releaseInfraCluster removes the finalizer of an NstanceCluster that is being deleted.
func (r *reconciler) releaseInfraCluster(ctx context.Context, infra *v1beta1.NstanceCluster) error {
	if infra == nil || infra.DeletionTimestamp.IsZero() {
		return nil
	}
	before := infra.DeepCopy()
	controllerutil.RemoveFinalizer(infra, v1beta1.ClusterFinalizer)
	if err := r.Patch(ctx, before, infra); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch NstanceCluster %s: %w", r.objectKey(), err)
	}
	return nil
}

// listWaits returns a map whose keys are the shards that still have groups or machines of the Cluster. The value is
// false for a shard that does not answer.
func (r *reconciler) listWaits(ctx context.Context) (map[string]bool, error) {
	ours := []client.ListOption{client.InNamespace(r.Namespace), client.UnsafeDisableDeepCopy,
		client.MatchingLabels{clusterv1.ClusterNameLabel: r.ClusterName()}}
	groups, machines := &v1beta1.NstanceShardGroupList{}, &v1beta1.NstanceMachineList{}
	if err := r.Client.List(ctx, groups, ours...); err != nil {
		return nil, fmt.Errorf("list shard groups: %w", err)
	}
	if err := r.Client.List(ctx, machines, ours...); err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	waits := map[string]bool{}
	for _, group := range groups.Items {
		waits[group.Spec.Shard] = false
	}
	for _, machine := range machines.Items {
		if machine.Spec.Shard != "" {
			waits[machine.Spec.Shard] = false
		}
	}
	for id := range waits {
		shard, ok := r.Shards.Shard(id)
		waits[id] = ok && shard.State().Reachable
	}
	return waits, nil
}

// deletionMessage says what the deletion of the Cluster waits for.
func deletionMessage(waits map[string]bool) string {
	var silent, deleting []string
	for _, id := range slices.Sorted(maps.Keys(waits)) {
		if waits[id] {
			deleting = append(deleting, id)
		} else {
			silent = append(silent, id)
		}
	}
	switch {
	case len(silent) > 0:
		return fmt.Sprintf("waiting for shards that do not answer: %s; the annotation %s on the Cluster skips them",
			strings.Join(silent, ", "), v1beta1.SkipShardsAnnotation)
	case len(deleting) > 0:
		return "waiting for the groups and machines of shards " + strings.Join(deleting, ", ")
	}
	return "waiting for Cluster API"
}

// recordText is the explanation in the ConfigMap that records a deletion.
const recordText = `The Cluster %[1]s was deleted. While this ConfigMap exists, nstance-operator does not
create the Cluster again.
Groups from the configuration of the shards keep running at their configured size, and Kubernetes does not manage them.
To create the Cluster again and import these groups:

  kubectl -n %[2]s annotate configmap %[3]s %[4]s=true
`

// newRecord returns the record of a deletion.
func newRecord(namespace, cluster string) *corev1.ConfigMap {
	record := &corev1.ConfigMap{}
	record.Namespace, record.Name = namespace, v1beta1.DeletionRecordName(cluster)
	record.Data = map[string]string{"README": fmt.Sprintf(recordText, cluster, namespace, record.Name,
		v1beta1.RecreateAnnotation)}
	return record
}

// createRecord records the deletion of the Cluster. An existing record is not changed.
func (r *reconciler) createRecord(ctx context.Context) error {
	err := r.Client.Create(ctx, newRecord(r.Namespace, r.ClusterName()))
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil
	case err != nil:
		return fmt.Errorf("record the deletion of Cluster %s: %w", r.objectKey(), err)
	}
	r.Log.Info("the Cluster is being deleted", "name", r.ClusterName())
	return nil
}

// readRecord returns the record of a deletion, nil if there is none.
func (r *reconciler) readRecord(ctx context.Context) (*corev1.ConfigMap, error) {
	record := &corev1.ConfigMap{}
	err := r.Client.Get(ctx, r.Key(v1beta1.DeletionRecordName(r.ClusterName())), record)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", v1beta1.DeletionRecordName(r.ClusterName()), err)
	}
	return record, nil
}

// removeRecord removes the record of an earlier deletion.
func (r *reconciler) removeRecord(ctx context.Context) error {
	err := r.Client.Delete(ctx, newRecord(r.Namespace, r.ClusterName()))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ConfigMap %s: %w", v1beta1.DeletionRecordName(r.ClusterName()), err)
	}
	return nil
}

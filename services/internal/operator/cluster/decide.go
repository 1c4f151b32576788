package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
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
	if problem := strings.Trim(r.kubeconfig.problem()+"; "+r.Problems.String(), "; "); problem != "" {
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

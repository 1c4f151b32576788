package operator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// stepKind is a kind of random change. run makes it and returns its description, or "" if it is not possible now.
type stepKind struct {
	weight int
	run    func(*sequence) string
}

var stepKinds = []stepKind{
	{12, (*sequence).scalePool},
	{5, (*sequence).createPool},
	{4, (*sequence).editPool},
	{1, (*sequence).pausePool},
	{2, (*sequence).changeSizeOnShard},
	{3, (*sequence).deleteObject},
	{3, (*sequence).createMachine},
	{3, (*sequence).deleteMachine},
	{2, (*sequence).deletePoolMachine},
	{2, (*sequence).scaleDownLikeAutoscaler},
	{5, (*sequence).createRequestingPod},
	{3, (*sequence).createOtherPod},
	{5, (*sequence).deletePod},
	{1, (*sequence).killVM},
	{2, (*sequence).restartOperator},
	{1, (*sequence).restartServer},
	{3, (*sequence).hangShard},
	{4, (*sequence).continueShard},
	{1, (*sequence).deleteCluster},
}

// dynamicNames are the groups that exist only in Kubernetes.
var dynamicNames = []string{"d0", "d1", "d2"}

const (
	mostReplicas = 4 // of one pool
	mostPods     = 5
	mostSingles  = 3
)

// done reports whether a change was accepted. The API server may refuse a change because the object is gone, exists
// already or was changed by another client. The test fails if err is any other error.
func (s *sequence) done(err error) bool {
	s.t.Helper()
	switch {
	case err == nil:
		return true
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		s.record("refused", err.Error())
		return false
	}
	s.t.Fatalf("step %d: %v", s.step, err)
	return false
}

// pick returns a random one of the names, or "" if there are none.
func (s *sequence) pick(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[s.random.IntN(len(names))]
}

func (s *sequence) pickShard() *shard { return s.shards()[s.random.IntN(2)] }

func (s *sequence) scalePool() string {
	name := s.pick(s.model.livePools())
	if name == "" {
		return ""
	}
	n := s.random.IntN(mostReplicas + 1)
	if s.done(s.scale(s.t.Context(), name, n)) {
		s.model.pools[name].replicas = n
	}
	return fmt.Sprintf("scale %s to %d", name, n)
}

// createPool creates a dynamic pool. For a MachinePool that has lost its NstanceMachinePool, it creates only the
// latter.
func (s *sequence) createPool() string {
	name := s.pick(dynamicNames)
	if s.model.ended || s.model.pools[name] != nil && !s.model.pools[name].headless {
		return ""
	}
	ctx := s.t.Context()
	infra := &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)}
	if s.absent(ctx, infra, in(name)) != nil {
		return "" // The deleted NstanceMachinePool still exists.
	}
	if s.model.pools[name] == nil && s.absent(ctx, &clusterv1.MachinePool{}, in(name)) != nil {
		return ""
	}
	infra = &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name), Spec: v1beta1.NstanceMachinePoolSpec{Group: name,
		Shards: s.randomShards(), Config: fromWorker}}
	if !s.done(s.Client.Create(ctx, infra)) {
		return "create pool " + name
	}
	delete(s.deletions, name)
	if one := s.model.pools[name]; one != nil {
		one.headless = false
		return "create the NstanceMachinePool " + name
	}
	n := s.random.IntN(mostReplicas)
	if s.done(s.Client.Create(ctx, referringPool(name, name, int32(n)))) {
		s.model.pools[name] = &poolModel{replicas: n}
	}
	return fmt.Sprintf("create pool %s of %d over %v", name, n, infra.Spec.Shards)
}

func (s *sequence) randomShards() []string {
	return [][]string{{"east", "west"}, {"west", "east"}, {"east"}, {"west"}}[s.random.IntN(4)]
}

// editPool changes the shards or the variables of a dynamic pool. A change of variables replaces the instances.
func (s *sequence) editPool() string {
	name := s.pick(s.model.livePools())
	if name == "" || s.model.pools[name].static || s.model.ended {
		return ""
	}
	spec := fmt.Sprintf(`{"vars":{"edit":"%d"}}`, s.step)
	if s.random.IntN(2) == 0 {
		spec = fmt.Sprintf(`{"shards":["%s"]}`, strings.Join(s.randomShards(), `","`))
	}
	s.done(s.merge(&v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)}, `{"spec":`+spec+`}`))
	return "edit " + name + ": " + spec
}

func (s *sequence) merge(object client.Object, patch string) error {
	return s.Client.Patch(s.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch)))
}

func (s *sequence) pausePool() string {
	name := s.pick(s.model.livePools())
	if name == "" {
		return ""
	}
	if s.done(s.merge(&v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)},
		fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, clusterv1.PausedAnnotation))) {
		s.model.paused = append(s.model.paused, name)
	}
	return "pause " + name
}

// unpause ends the pause of all pools.
func (s *sequence) unpause() {
	for _, name := range s.model.paused {
		s.done(s.merge(&v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)},
			fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, clusterv1.PausedAnnotation)))
	}
	s.model.paused = nil
}

// changeSizeOnShard changes the size of a group on a shard without the operator's knowledge.
func (s *sequence) changeSizeOnShard() string {
	name, at := s.pick(s.model.livePools()), s.pickShard()
	if name == "" || at == s.hanging || s.model.ended {
		return ""
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer cancel()
	n := s.random.Uint32N(mostReplicas)
	_, err := at.UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{Group: name,
		Patch: fmt.Sprintf(`{"size": %d}`, n), MustExist: true})
	return fmt.Sprintf("change the size of %s on %s to %d (%v)", name, at.id, n, err)
}

// deleteObject deletes an object of a random kind. It also changes the model to what such a deletion causes according
// to the documentation.
func (s *sequence) deleteObject() string {
	name := s.pick(slices.Sorted(maps.Keys(s.model.pools)))
	var object client.Object
	var what string
	one := s.model.pools[name]
	switch s.random.IntN(4) {
	case 0:
		what, object = "MachinePool "+name, &clusterv1.MachinePool{ObjectMeta: objectMeta(name)}
	case 1:
		what, object = "NstanceMachinePool "+name, &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)}
	case 2:
		group := v1beta1.ShardGroupName(name, s.pickShard().id)
		what, object = "NstanceShardGroup "+group, &v1beta1.NstanceShardGroup{ObjectMeta: objectMeta(group)}
	default:
		what, object = "NstanceCluster", &v1beta1.NstanceCluster{ObjectMeta: objectMeta(clusterName)}
	}
	var unseen bool
	if pool, ok := object.(*clusterv1.MachinePool); ok {
		unseen = s.Client.Get(s.t.Context(), in(name), pool) == nil && len(pool.Finalizers) == 0
	}
	if !s.done(s.Client.Delete(s.t.Context(), object)) {
		return "delete " + what
	}
	switch object.(type) {
	case *clusterv1.MachinePool:
		if one.static {
			one.replicas, one.frozen = one.configured, true
			break
		}
		if unseen {
			// Cluster API had not seen the MachinePool yet, so it does not delete the NstanceMachinePool. The test
			// deletes it instead.
			what += " and its NstanceMachinePool"
			s.done(s.Client.Delete(s.t.Context(), &v1beta1.NstanceMachinePool{ObjectMeta: objectMeta(name)}))
		}
		delete(s.model.pools, name)
		s.deletions[name] = time.Now()
	case *v1beta1.NstanceMachinePool:
		one.headless = !one.static
		if one.headless {
			s.deletions[name] = time.Now()
		}
	}
	return "delete " + what
}

func (s *sequence) createMachine() string {
	if s.model.ended || len(s.model.singles) >= mostSingles {
		return ""
	}
	name, shard := fmt.Sprint("single-", s.step), s.pickShard().id
	s.machine(s.t, name, shard)
	s.model.singles[name] = shard
	return "create Machine " + name + " on " + shard
}

func (s *sequence) deleteMachine() string {
	name := s.pick(slices.Sorted(maps.Keys(s.model.singles)))
	if name == "" {
		return ""
	}
	s.done(s.Client.Delete(s.t.Context(), &clusterv1.Machine{ObjectMeta: objectMeta(name)}))
	delete(s.model.singles, name)
	return "delete Machine " + name
}

// poolMachine returns a random Machine of a pool, nil if there is none.
func (s *sequence) poolMachine(pool string) *clusterv1.Machine {
	var list clusterv1.MachineList
	if err := s.Client.List(s.t.Context(), &list, client.InNamespace(namespace),
		client.MatchingLabels{clusterv1.MachinePoolNameLabel: pool}); err != nil {
		s.t.Fatal(err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(m clusterv1.Machine) bool { return !m.DeletionTimestamp.IsZero() })
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[s.random.IntN(len(list.Items))]
}

// deletePoolMachine deletes a Machine of a pool. Nstance must then replace the Machine.
func (s *sequence) deletePoolMachine() string {
	name := s.pick(s.model.livePools())
	if name == "" || s.model.ended {
		return ""
	}
	machine := s.poolMachine(name)
	if machine == nil {
		return ""
	}
	s.done(s.Client.Delete(s.t.Context(), machine))
	return "delete Machine " + machine.Name + " of " + name
}

// scaleDownLikeAutoscaler marks a Machine for deletion and lowers the replicas of its pool, like the cluster
// autoscaler.
func (s *sequence) scaleDownLikeAutoscaler() string {
	name := s.pick(s.model.livePools())
	if name == "" || s.model.pools[name].replicas == 0 || s.model.ended {
		return ""
	}
	machine := s.poolMachine(name)
	if machine == nil {
		return ""
	}
	if s.done(s.merge(machine, fmt.Sprintf(`{"metadata":{"annotations":{%q:"now"}}}`,
		clusterv1.DeleteMachineAnnotation))) && s.done(s.scale(s.t.Context(), name, s.model.pools[name].replicas-1)) {
		s.model.pools[name].replicas--
	}
	return fmt.Sprintf("scale %s down to %d without %s", name, s.model.pools[name].replicas, machine.Name)
}

// createRequestingPod creates a pod with its own machine.
func (s *sequence) createRequestingPod() string {
	if len(s.model.pods) >= mostPods {
		return ""
	}
	name := fmt.Sprint("requesting-", s.step)
	s.create(s.t.Context(), s.t, requestingPod(name))
	s.model.pods[name] = true
	return "create pod " + name
}

// createOtherPod creates a pod that runs on any Node.
func (s *sequence) createOtherPod() string {
	if len(s.model.pods) >= mostPods {
		return ""
	}
	name := fmt.Sprint("other-", s.step)
	s.create(s.t.Context(), s.t, &corev1.Pod{ObjectMeta: objectMeta(name), Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "none"}}}})
	s.model.pods[name] = false
	return "create pod " + name
}

func (s *sequence) deletePod() string {
	name := s.pick(s.model.podNames())
	if name == "" {
		return ""
	}
	s.done(s.Client.Delete(s.t.Context(), &corev1.Pod{ObjectMeta: objectMeta(name)}))
	s.model.forgetPod(name)
	return "delete pod " + name
}

// killVM ends a VM of a pool like a power failure.
func (s *sequence) killVM() string {
	name, at := s.pick(s.model.livePools()), s.pickShard()
	if name == "" || at == s.hanging || s.model.ended {
		return ""
	}
	// List the instances of all groups, because the shard may not have this pool's group.
	instances, err := at.instances(s.t.Context(), "")
	if err != nil {
		return ""
	}
	instances = slices.DeleteFunc(instances, func(i *nstancev1.InstanceStatus) bool { return i.GetGroup() != name })
	if len(instances) == 0 {
		return ""
	}
	id := instances[s.random.IntN(len(instances))].GetInstanceId()
	return fmt.Sprintf("kill the VM %s of %s (%v)", id, name, at.kill(id))
}

func (s *sequence) restartOperator() string {
	s.operators[len(s.operators)-1].Kill()
	s.configureOperator()
	s.operator(s.t)
	return "restart the operator"
}

func (s *sequence) restartServer() string {
	at := s.pickShard()
	if at == s.hanging {
		return ""
	}
	at.server().Kill()
	s.disturbed[at.id] = true
	return "kill the server of " + at.id
}

func (s *sequence) hangShard() string {
	at := s.pickShard()
	if s.hanging != nil || at.server().Signal(syscall.SIGSTOP) != nil {
		return ""
	}
	s.hanging, s.disturbed[at.id] = at, true
	return at.id + " hangs"
}

func (s *sequence) continueShard() string {
	if s.hanging == nil {
		return ""
	}
	id := s.hanging.id
	s.proceed()
	return id + " continues"
}

// proceed makes the paused server of a shard continue, if a server is paused.
func (s *sequence) proceed() {
	if s.hanging == nil {
		return
	}
	_ = s.hanging.server().Signal(syscall.SIGCONT) // The process may have ended.
	s.freed[s.hanging] = time.Now()
	s.hanging = nil
}

// deleteCluster deletes the Cluster. From then on until the end of the round, no instance may be created.
func (s *sequence) deleteCluster() string {
	if s.model.ended {
		return ""
	}
	if !s.done(s.Client.Delete(s.t.Context(), &clusterv1.Cluster{ObjectMeta: objectMeta(clusterName)})) {
		return "delete the Cluster"
	}
	s.model.ended = true
	for _, name := range append(slices.Clone(dynamicNames), machines) {
		s.deletions[name] = time.Now()
	}
	return "delete the Cluster"
}

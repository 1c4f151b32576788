// Command hpa plays series of metrics to the Horizontal Pod Autoscaler of Kubernetes, in simulated time. Each line of its
// input is a series in JSON. It prints, for each series, a line with the sizes that the controller chose.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	apis "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	autoscalingclient "k8s.io/client-go/kubernetes/typed/autoscaling/v2"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	scaleclient "k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	"k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
)

// series is the life of a group: its policy, and what is known about it at each computation of its size.
type series struct {
	Min, Max  int32
	Tolerance float64
	Up, Down  limits
	Targets   []int64 // of each metric, in thousandths
	Steps     []step
}

// limits are the stabilization window in seconds and the largest step, in percent or as a count.
type limits struct {
	Window         int32
	Percent, Count int32
}

// step is one computation. Ready and Unready count the instances. Values has the values of each metric: those of the
// first instances that are ready. The others are missing. If Totals has an entry for the metric, it is the metric of
// the whole group instead. A metric in Failed cannot be read.
type step struct {
	Size, Ready, Unready int32
	Values               [][]int64
	Totals               map[int]int64
	Failed               []int
}

// every is the time between two computations.
const every = 15 * time.Second

const namespace, name = "default", "g"

func main() {
	utilruntime.ErrorHandlers = nil // they would wait
	klog.SetLogger(logr.Discard())
	// Only tests can have simulated time.
	testing.Main(func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: "hpa", F: answer}}, nil, nil)
}

// answer reads all series.
func answer(t *testing.T) {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<28)
	for in.Scan() {
		var s series
		if err := json.Unmarshal(in.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		var sizes []int32
		synctest.Test(t, func(t *testing.T) { sizes = s.play(t.Context()) })
		if err := out.Encode(sizes); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
}

// play returns the size that the controller chose at each step.
func (s *series) play(ctx context.Context) (sizes []int32) {
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, logr.Discard()))
	g := &group{pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}), hpas: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	hpa := s.autoscaler()
	must(g.hpas.Add(hpa))
	version := schema.GroupVersion{Group: "apps", Version: "v1"}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{version})
	mapper.Add(version.WithKind("Deployment"), meta.RESTScopeNamespace)
	hpas := &hpaInformer{group: g}
	controller := podautoscaler.NewHorizontalController(ctx, g, g, statusWriter{}, mapper, g, hpas, &podInformer{group: g},
		every, 5*time.Minute, s.Tolerance, 0, 0)
	ended := make(chan struct{})
	go func() {
		controller.Run(ctx, 1)
		close(ended)
	}()
	hpas.handler.OnAdd(hpa, true)
	time.Sleep(every / 2)
	for _, step := range s.Steps { // the controller computes between two steps
		g.show(step)
		time.Sleep(every)
		sizes = append(sizes, g.size)
	}
	cancel()
	<-ended
	return sizes
}

func (s *series) autoscaler() *autoscaling.HorizontalPodAutoscaler {
	rules := func(l limits) *autoscaling.HPAScalingRules {
		policy := autoscaling.HPAScalingPolicy{Type: autoscaling.PercentScalingPolicy, Value: l.Percent,
			PeriodSeconds: int32(every.Seconds())}
		if l.Percent == 0 {
			policy.Type, policy.Value = autoscaling.PodsScalingPolicy, l.Count
		}
		selects := autoscaling.MaxChangePolicySelect
		return &autoscaling.HPAScalingRules{StabilizationWindowSeconds: &l.Window, SelectPolicy: &selects,
			Policies: []autoscaling.HPAScalingPolicy{policy}}
	}
	hpa := &autoscaling.HorizontalPodAutoscaler{ObjectMeta: apis.ObjectMeta{Namespace: namespace, Name: name}}
	hpa.Spec = autoscaling.HorizontalPodAutoscalerSpec{MinReplicas: &s.Min, MaxReplicas: s.Max,
		ScaleTargetRef: autoscaling.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
		Behavior:       &autoscaling.HorizontalPodAutoscalerBehavior{ScaleUp: rules(s.Up), ScaleDown: rules(s.Down)}}
	for i, target := range s.Targets {
		id := autoscaling.MetricIdentifier{Name: fmt.Sprint(i)}
		goal := autoscaling.MetricTarget{Type: autoscaling.AverageValueMetricType,
			AverageValue: resource.NewMilliQuantity(target, resource.DecimalSI)}
		metric := autoscaling.MetricSpec{Type: autoscaling.PodsMetricSourceType,
			Pods: &autoscaling.PodsMetricSource{Metric: id, Target: goal}}
		if _, total := s.Steps[0].Totals[i]; total {
			metric = autoscaling.MetricSpec{Type: autoscaling.ExternalMetricSourceType,
				External: &autoscaling.ExternalMetricSource{Metric: id, Target: goal}}
		}
		hpa.Spec.Metrics = append(hpa.Spec.Metrics, metric)
	}
	return hpa
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// group is what the controller sees.
type group struct {
	pods, hpas cache.Indexer
	step       step
	size       int32
}

// show lets the controller see a step.
func (g *group) show(s step) {
	g.step, g.size = s, s.Size
	var pods []any
	for i := range s.Ready + s.Unready {
		pod := &core.Pod{ObjectMeta: apis.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i),
			Labels: map[string]string{"app": name}}}
		pod.Status.Phase = core.PodRunning
		pod.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}
		if i >= s.Ready {
			pod.Status = core.PodStatus{Phase: core.PodPending}
		}
		pods = append(pods, pod)
	}
	must(g.pods.Replace(pods, ""))
}

func (g *group) failed(metric int) bool {
	for _, f := range g.step.Failed {
		if f == metric {
			return true
		}
	}
	return false
}

func index(metric string) (i int) {
	_, err := fmt.Sscan(metric, &i)
	must(err)
	return i
}

var errFailed = errors.New("the metric cannot be read")

// GetRawMetric implements metrics.MetricsClient.
func (g *group) GetRawMetric(metric, _ string, _, _ labels.Selector) (metrics.PodMetricsInfo, time.Time, error) {
	i := index(metric)
	if g.failed(i) {
		return nil, time.Time{}, errFailed
	}
	info := metrics.PodMetricsInfo{}
	for pod, value := range g.step.Values[i] {
		info[fmt.Sprint(pod)] = metrics.PodMetric{Timestamp: time.Now(), Window: every, Value: value}
	}
	return info, time.Now(), nil
}

// GetExternalMetric implements metrics.MetricsClient.
func (g *group) GetExternalMetric(metric, _ string, _ labels.Selector) ([]int64, time.Time, error) {
	i := index(metric)
	if g.failed(i) {
		return nil, time.Time{}, errFailed
	}
	return []int64{g.step.Totals[i]}, time.Now(), nil
}

// GetResourceMetric implements metrics.MetricsClient.
func (*group) GetResourceMetric(context.Context, core.ResourceName, string, labels.Selector, string) (
	metrics.PodMetricsInfo, time.Time, error) {
	return nil, time.Time{}, errFailed
}

// GetObjectMetric implements metrics.MetricsClient.
func (*group) GetObjectMetric(string, string, *autoscaling.CrossVersionObjectReference, labels.Selector) (int64,
	time.Time, error) {
	return 0, time.Time{}, errFailed
}

// Scales implements scaleclient.ScalesGetter.
func (g *group) Scales(string) scaleclient.ScaleInterface { return scales{g} }

type scales struct{ group *group }

func (s scales) Get(context.Context, schema.GroupResource, string, apis.GetOptions) (*autoscalingv1.Scale, error) {
	return &autoscalingv1.Scale{ObjectMeta: apis.ObjectMeta{Namespace: namespace, Name: name},
		Spec:   autoscalingv1.ScaleSpec{Replicas: s.group.size},
		Status: autoscalingv1.ScaleStatus{Replicas: s.group.size, Selector: "app=" + name}}, nil
}

func (s scales) Update(_ context.Context, _ schema.GroupResource, scale *autoscalingv1.Scale, _ apis.UpdateOptions) (
	*autoscalingv1.Scale, error) {
	s.group.size = scale.Spec.Replicas
	return scale, nil
}

func (scales) Patch(context.Context, schema.GroupVersionResource, string, types.PatchType, []byte, apis.PatchOptions) (
	*autoscalingv1.Scale, error) {
	return nil, errors.ErrUnsupported
}

// Events implements coreclient.EventsGetter. Events are dropped.
func (g *group) Events(string) coreclient.EventInterface { return noEvents{} }

type noEvents struct{ coreclient.EventInterface }

func (noEvents) CreateWithEventNamespace(e *core.Event) (*core.Event, error)          { return e, nil }
func (noEvents) UpdateWithEventNamespace(e *core.Event) (*core.Event, error)          { return e, nil }
func (noEvents) PatchWithEventNamespace(e *core.Event, _ []byte) (*core.Event, error) { return e, nil }

// statusWriter drops the status that the controller writes.
type statusWriter struct {
	autoscalingclient.HorizontalPodAutoscalerInterface
}

func (s statusWriter) HorizontalPodAutoscalers(string) autoscalingclient.HorizontalPodAutoscalerInterface {
	return s
}

func (statusWriter) UpdateStatus(_ context.Context, hpa *autoscaling.HorizontalPodAutoscaler, _ apis.UpdateOptions) (
	*autoscaling.HorizontalPodAutoscaler, error) {
	return hpa, nil
}

// informer is an informer that has synced. It keeps its handler.
type informer struct {
	cache.SharedIndexInformer
}

func (informer) HasSynced() bool { return true }

type podInformer struct {
	informer
	group *group
}

func (p *podInformer) Informer() cache.SharedIndexInformer { return p.informer }
func (p *podInformer) Lister() corelisters.PodLister       { return corelisters.NewPodLister(p.group.pods) }

type hpaInformer struct {
	informer
	group   *group
	handler cache.ResourceEventHandler
}

func (h *hpaInformer) Informer() cache.SharedIndexInformer { return h }

func (h *hpaInformer) Lister() autoscalinglisters.HorizontalPodAutoscalerLister {
	return autoscalinglisters.NewHorizontalPodAutoscalerLister(h.group.hpas)
}

func (h *hpaInformer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (
	cache.ResourceEventHandlerRegistration, error) {
	h.handler = handler
	return nil, nil
}

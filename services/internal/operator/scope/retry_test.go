package scope

import (
	"context"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

// TestEveryObjectIsCheckedAgain checks that an object is reconciled again after a minute at most, so that whatever
// another client has changed is written again. An object that does not exist is not.
func TestEveryObjectIsCheckedAgain(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}).Build()
	s := &Scope{Client: kube, Recorder: events.NewFakeRecorder(1), Namespace: "default", Now: time.Now,
		Log: slog.New(slog.DiscardHandler)}
	for _, test := range []struct {
		name           string
		asks, min, max time.Duration
	}{{"web", 0, 40 * time.Second, time.Minute}, {"web", time.Second, time.Second, time.Second},
		{"web", time.Hour, 40 * time.Second, time.Minute}, {"gone", 0, 0, 0}} {
		r := s.Supervise(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: test.asks}, nil
		}), &v1beta1.NstanceMachinePool{})
		got, err := r.Reconcile(t.Context(), s.Request(test.name))
		if err != nil || got.RequeueAfter < test.min || got.RequeueAfter > test.max {
			t.Errorf("%s, which asks for %s, is reconciled again after %s, want %s to %s: %v", test.name, test.asks,
				got.RequeueAfter, test.min, test.max, err)
		}
	}
}

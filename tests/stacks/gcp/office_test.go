package gcp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/tests/kube"
	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// operatorNamespace is the namespace of nstance-operator and its objects.
const operatorNamespace = "nstance-system"

// office is a network beside the clouds, in which Kubernetes and nstance-operator run. A VPN connects it with the
// leaders.
type office struct {
	*kube.Cluster
	dir     string
	network *kube.Network
	listen  func(address netip.Prefix, port uint16) (net.Listener, error)
	started chan error
}

// newOffice starts a Kubernetes in the background. The caller must call await.
func newOffice(t *testing.T, c *cloud) *office {
	t.Helper()
	const name = "office"
	namespace, err := c.machines.VPCNamespace(name)
	must(t, err)
	o := &office{dir: t.TempDir(), started: make(chan error, 1),
		network: &kube.Network{Enter: []string{"nsenter", "--net=" + namespace},
			Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				return c.machines.DialVPC(ctx, name, network, address)
			}},
		listen: func(address netip.Prefix, port uint16) (net.Listener, error) {
			return c.machines.ListenVPC(name, address, port)
		}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	var ended sync.WaitGroup
	ended.Go(func() {
		_, err := lab.Run(ctx, "go", "build", "-o", o.dir, "./services/cmd/nstance-operator")
		if err == nil {
			o.Cluster, err = kube.Start(ctx, kube.Options{Dir: filepath.Join(o.dir, "kube"), ControllerManager: true,
				CAPI: true, Network: o.network})
		}
		o.started <- err
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		if o.Cluster == nil {
			return
		}
		o.Stop()
		if t.Failed() {
			for _, log := range []string{"operator.log", "kube/capi-core.log"} {
				t.Logf("--- %s\n%s", log, kube.Tail(filepath.Join(o.dir, log), 60))
			}
		}
	})
	return o
}

// await waits until Kubernetes runs. It returns a directory with the programs kubectl and helm for this Kubernetes, and
// with the program office, which runs a command in the office's network.
func (o *office) await(t *testing.T) (bin string) {
	t.Helper()
	must(t, <-o.started)
	bin = t.TempDir()
	enter := strings.Join(o.network.Enter, " ")
	must(t, os.WriteFile(filepath.Join(bin, "office"), []byte("#!/bin/sh\nexec "+enter+" \"$@\"\n"), 0o700))
	for _, name := range []string{"kubectl", "helm"} {
		program, err := lab.Run(t.Context(), "scripts/tool.sh", name)
		must(t, err)
		script := fmt.Sprintf("#!/bin/sh\nKUBECONFIG=%s exec %s %s \"$@\"\n", o.Kubeconfig, enter, program)
		must(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700))
	}
	return bin
}

// runOperator runs nstance-operator with the configuration and the rights that the chart has installed, until the test
// ends or stop is called.
func (o *office) runOperator(t *testing.T) (stop func()) {
	t.Helper()
	settings := &corev1.ConfigMap{}
	must(t, o.Client.Get(t.Context(), client.ObjectKey{Namespace: operatorNamespace, Name: "nstance-operator-config"},
		settings))
	file, kubeconfig := filepath.Join(o.dir, "operator.yaml"), filepath.Join(o.dir, "operator.kubeconfig")
	must(t, os.WriteFile(file, []byte(settings.Data["config.yaml"]), 0o600))
	account, err := o.ForServiceAccount(t.Context(), operatorNamespace, "nstance-operator")
	must(t, err)
	must(t, kube.WriteKubeconfig(kubeconfig, account))
	process, err := o.network.Run(o.dir, "operator", filepath.Join(o.dir, "nstance-operator"),
		append(os.Environ(), "KUBECONFIG="+kubeconfig, "NSTANCE_NAMESPACE="+operatorNamespace), "--config="+file,
		"--health-probe-bind-address=0", "--metrics-bind-address=0")
	must(t, err)
	t.Cleanup(process.Kill)
	return process.Kill
}

// pool returns the NstanceMachinePool of the example's MachinePool.
func (o *office) pool(t *testing.T) (pool v1beta1.NstanceMachinePool) {
	t.Helper()
	must(t, o.Client.Get(t.Context(), client.ObjectKey{Namespace: operatorNamespace, Name: "pool"}, &pool))
	return pool
}

// poolHas returns "" if the pool has as many VMs on each cloud in Kubernetes, and otherwise what it has.
func (o *office) poolHas(t *testing.T, aws, gcp int) string {
	t.Helper()
	pool := o.pool(t)
	onAWS := 0
	for _, id := range pool.Spec.ProviderIDList {
		if strings.HasPrefix(id, "i-") {
			onAWS++
		}
	}
	if all := len(pool.Spec.ProviderIDList); onAWS != aws || all != aws+gcp || pool.Status.Replicas == nil ||
		int(*pool.Status.Replicas) != all || !meta.IsStatusConditionTrue(pool.Status.Conditions,
		v1beta1.ReadyCondition) {
		return fmt.Sprintf("%v, %+v", pool.Spec.ProviderIDList, pool.Status)
	}
	return ""
}

// unreachable returns "" if the pool says that a shard cannot be reached, and that the other one can.
func (o *office) unreachable(t *testing.T, shard string) string {
	t.Helper()
	pool := o.pool(t)
	said := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ShardsReachableCondition)
	if said == nil || said.Status != metav1.ConditionFalse || !strings.Contains(said.Message, shard) ||
		strings.Contains(said.Message, zone) {
		return fmt.Sprintf("%+v", pool.Status.Conditions)
	}
	return ""
}

// link is the connection of the office with one leader. A cut link delivers nothing, and keeps what it should deliver.
type link struct{ passing sync.RWMutex }

func (l *link) cut()  { l.passing.Lock() }
func (l *link) mend() { l.passing.Unlock() }

// pass waits while the link is cut.
func (l *link) pass() {
	l.passing.RLock()
	l.passing.RUnlock() //nolint:staticcheck // it only waits
}

// connect connects the office with the leader at an address until the test ends. dial connects from the leader's
// network.
func (o *office) connect(t *testing.T, leader string,
	dial func(ctx context.Context, network, address string) (net.Conn, error)) *link {
	t.Helper()
	l := &link{}
	address := netip.MustParseAddr(leader)
	for _, port := range []uint16{8992, 8993} {
		listener, err := o.listen(netip.PrefixFrom(address, address.BitLen()), port)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
		target := netip.AddrPortFrom(address, port).String()
		go func() {
			for {
				near, err := listener.Accept()
				if err != nil {
					return // The listener is closed.
				}
				go l.relay(near, func() (net.Conn, error) { return dial(context.Background(), "tcp", target) })
			}
		}()
	}
	return l
}

// relay connects a client with the other end of the link.
func (l *link) relay(near net.Conn, dial func() (net.Conn, error)) {
	defer near.Close()
	l.pass()
	far, err := dial()
	if err != nil {
		return
	}
	defer far.Close()
	go l.copy(far, near)
	l.copy(near, far)
}

// copy copies from one end to the other until one of them is closed.
func (l *link) copy(to io.WriteCloser, from io.Reader) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.pass()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

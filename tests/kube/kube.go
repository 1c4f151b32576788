// Package kube runs a real Kubernetes on this machine for tests. It always starts etcd and kube-apiserver. Options add
// the controller manager, the scheduler, kwok (nodes without machines), and Cluster API's core manager with its
// webhooks.
//
// Invariant: every process listens on loopback addresses only, writes only below the given directory, and ends with the
// test's process. Cluster API's webhooks have no setting for their listen address, so they run only in a separate
// network namespace; see [Isolate].
package kube

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const loopback = "127.0.0.1"

// Options selects the components that [Start] starts.
type Options struct {
	// Dir is the directory for everything that the processes write. It is required. Only the owner can read its
	// certificate and key files.
	Dir string
	// CRDs are files, or directories of files, with CustomResourceDefinitions to install.
	CRDs []string
	// CoreCRDs installs the CRDs of Cluster API's core. It is not needed if CAPI is set.
	CoreCRDs bool
	// ControllerManager runs kube-controller-manager. Its node monitor detects within seconds that a Node's lease is
	// not renewed.
	ControllerManager bool
	Scheduler         bool
	// Kwok simulates the kubelets of Nodes with the label [AliveLabel].
	Kwok bool
	// CAPI runs Cluster API's core manager with its webhooks. It requires [Isolate] or Network.
	CAPI bool
	// Network is a network of their own for the processes. Nil means that of this process.
	Network *Network
	// Audit lists the users for [Cluster.Requests].
	Audit []string
}

// Network is a network namespace that has a loopback interface.
type Network struct {
	// Enter is the beginning of a command that runs the command in its further arguments in the network.
	Enter []string
	// Dial connects from the network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Run is like the function Run, in the network.
func (n *Network) Run(dir, name, program string, env []string, args ...string) (*Process, error) {
	if n != nil {
		program, args = n.Enter[0], slices.Concat(n.Enter[1:], []string{program}, args)
	}
	return Run(dir, name, program, env, args...)
}

// dial connects from the network.
func (n *Network) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if n == nil {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return n.Dial(ctx, network, address)
}

// Cluster is a running Kubernetes. Callers must not change its fields.
type Cluster struct {
	Options
	URL        string
	Config     *rest.Config // Administrator credentials.
	Kubeconfig string       // Path of a kubeconfig file with Config.
	// Client reads and writes without a cache, as an administrator. It knows the types of Kubernetes, of Cluster API's
	// core, and of Nstance.
	Client client.Client

	pki       *pki
	processes []*Process
}

// Start starts a cluster and returns when all requested components respond. The API server alone takes about 4 s. The
// caller ends the cluster with Stop. All processes also end with this process.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Dir == "" {
		return nil, errors.New("kube: no directory given")
	}
	if o.CAPI && !Isolated() && o.Network == nil {
		return nil,
			errors.New(
				"kube: Cluster API's webhooks listen on all addresses: run them in a network namespace of their " +
					"own, see kube.Isolate")
	}
	c := &Cluster{Options: o}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("kube: %w", err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) (err error) {
	if c.pki, err = newPKI(); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if c.CoreCRDs || c.CAPI {
		if err := c.installCore(ctx); err != nil {
			return err
		}
	}
	if len(c.CRDs) > 0 {
		if err := c.InstallCRDs(ctx, c.CRDs...); err != nil {
			return err
		}
	}
	for _, extra := range []struct {
		wanted bool
		start  func(context.Context) error
	}{{c.ControllerManager, c.startControllerManager}, {c.Scheduler, c.startScheduler}, {c.Kwok, c.startKwok},
		{c.CAPI, c.startCAPI}} {
		if extra.wanted {
			if err := extra.start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Stop ends all processes, in the reverse order of their start, and returns when they have ended. It may be called more
// than once.
func (c *Cluster) Stop() {
	for _, p := range slices.Backward(c.processes) {
		// SIGKILL is enough: no process has state worth saving.
		p.Kill()
	}
	c.processes = nil
}

// Process returns the process with the given program name, or nil if there is none.
func (c *Cluster) Process(name string) *Process {
	for _, p := range c.processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Logs returns the paths of the processes' logs.
func (c *Cluster) Logs() (paths []string) {
	for _, p := range c.processes {
		paths = append(paths, p.Log)
	}
	return paths
}

// run starts one of the pinned tools.
func (c *Cluster) run(ctx context.Context, name string, args ...string) (*Process, error) {
	program, err := Tool(ctx, name)
	if err != nil {
		return nil, err
	}
	p, err := c.Network.Run(c.Dir, name, program, nil, args...)
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// startAPIServer starts etcd and kube-apiserver on free ports. If another process takes one of these ports first,
// startAPIServer tries other ports.
func (c *Cluster) startAPIServer(ctx context.Context) error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := c.tryAPIServer(ctx, attempt)
		if err == nil || attempt == 5 || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
		c.Stop()
	}
}

func (c *Cluster) tryAPIServer(ctx context.Context, attempt int) error {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return err
	}
	// The API server may start before etcd is ready, because it repeats failed attempts to connect.
	etcd := fmt.Sprintf("http://%s", address(ports[0]))
	peer := fmt.Sprintf("http://%s", address(ports[1]))
	if _, err := c.run(ctx, "etcd", "--name=test", "--data-dir="+filepath.Join(c.Dir, "etcd-"+strconv.Itoa(attempt)),
		"--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer,
		"--initial-cluster=test="+peer); err != nil {
		return err
	}
	args, err := c.apiServerArgs(etcd, ports[2])
	if err != nil {
		return err
	}
	p, err := c.run(ctx, "kube-apiserver", args...)
	if err != nil {
		return err
	}
	c.URL = "https://" + address(ports[2])
	if c.Config, err = c.ForUser("kube-test-admin", "system:masters"); err != nil {
		return err
	}
	c.Kubeconfig = filepath.Join(c.Dir, "admin.kubeconfig")
	if err := WriteKubeconfig(c.Kubeconfig, c.Config); err != nil {
		return err
	}
	if err := c.ready(ctx, p); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme),
		clusterv1.AddToScheme(scheme),
		v1beta1.AddToScheme(scheme)); err != nil {
		return err
	}
	c.Client, err = client.New(c.Config, client.Options{Scheme: scheme})
	return err
}

func (c *Cluster) apiServerArgs(etcd string, port int) ([]string, error) {
	ca := filepath.Join(c.Dir, "ca.crt")
	if err := os.WriteFile(ca, c.pki.pem, 0o600); err != nil {
		return nil, err
	}
	serving, err := c.pki.server("kube-apiserver")
	if err != nil {
		return nil, err
	}
	cert, key, err := serving.write(c.Dir, "apiserver")
	if err != nil {
		return nil, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	accounts, err := encodeKey(signer)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.accountsKey(), accounts, 0o600); err != nil {
		return nil, err
	}
	audit, err := c.auditArgs()
	if err != nil {
		return nil, err
	}
	args := []string{"--etcd-servers=" + etcd, "--bind-address=" + loopback, "--advertise-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC",
		"--allow-privileged=true",
		// Some distributions of Kubernetes enable this plugin. It requires further rights of clients that set owners.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--client-ca-file=" + ca, "--tls-cert-file=" + cert, "--tls-private-key-file=" + key, "--cert-dir=" + c.Dir,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.accountsKey(),
		"--service-account-signing-key-file=" + c.accountsKey(), "--profiling=false", "--v=1"}
	if !c.ControllerManager {
		// The admission plugin refuses pods without a service account. Without the controller manager, nothing creates
		// the default service accounts, so the plugin must be off.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	return append(args, audit...), nil
}

func (c *Cluster) accountsKey() string { return filepath.Join(c.Dir, "service-accounts.key") }

// ready waits until the API server reports that it is ready. It fails if the API server or etcd ends.
func (c *Cluster) ready(ctx context.Context, p *Process) error {
	transport, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return err
	}
	last := errors.New("no answer")
	for {
		status, err := get(ctx, transport, c.URL+"/readyz")
		switch {
		case err == nil && status == http.StatusOK:
			return nil
		case err == nil:
			last = fmt.Errorf("/readyz answers %d", status)
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			return p.failed(fmt.Errorf("%w: %w", context.Cause(ctx), last))
		case <-p.Ended():
			return p.failed(errEnded)
		case <-c.Process("etcd").Ended():
			return c.Process("etcd").failed(errEnded)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func get(ctx context.Context, c *http.Client, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// freePorts returns free ports below the range from which Linux takes the ports of outgoing connections.
func freePorts(ctx context.Context, n int) (ports []int, err error) {
	const first, last = 20000, 32000
	var c net.ListenConfig
	for range 1000 {
		offset, err := rand.Int(rand.Reader, big.NewInt(last-first))
		if err != nil {
			return nil, err
		}
		port := first + int(offset.Int64())
		listener, err := c.Listen(ctx, "tcp", address(port))
		if err != nil || slices.Contains(ports, port) {
			continue
		}
		_ = listener.Close()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("no free ports")
}

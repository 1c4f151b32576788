package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controllers lists the controllers of kube-controller-manager that the tests of nodes, pods and owners need. The
// others are off, to save time.
const controllers = "serviceaccount-controller,serviceaccount-token-controller," +
	"root-ca-certificate-publisher-controller," +
	"namespace-controller,garbage-collector-controller,node-lifecycle-controller," +
	"taint-eviction-controller,pod-garbage-collector-controller,disruption-controller," +
	"deployment-controller,replicaset-controller,daemonset-controller,statefulset-controller," +
	"job-controller,clusterrole-aggregation-controller"

func (c *Cluster) startControllerManager(ctx context.Context) error {
	p, err := c.run(ctx, "kube-controller-manager", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false",
		"--secure-port=0", "--controllers="+controllers,
		"--service-account-private-key-file="+c.accountsKey(), "--root-ca-file="+filepath.Join(c.Dir, "ca.crt"),
		"--node-monitor-period=1s", "--node-monitor-grace-period="+nodeGrace.String(),
		"--node-startup-grace-period=20s", "--profiling=false")
	if err != nil {
		return err
	}
	// Pods can be created only after the default service account exists.
	return p.until(ctx, func() error {
		return c.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})
	})
}

func (c *Cluster) startScheduler(ctx context.Context) error {
	_, err := c.run(ctx, "kube-scheduler", "--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--profiling=false")
	return err
}

// until calls the function fn until fn succeeds, ctx ends, or the process ends.
func (p *Process) until(ctx context.Context, fn func() error) error {
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return p.failed(fmt.Errorf("%w: %w", context.Cause(ctx), err))
		case <-p.Ended():
			return p.failed(errEnded)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// startKwok starts kwok with stages that are part of kwok's own module. Nodes become ready immediately, and their
// leases are renewed. Pods start and terminate immediately.
func (c *Cluster) startKwok(ctx context.Context) error {
	module, err := ModuleDir(ctx, "kwok", "sigs.k8s.io/kwok")
	if err != nil {
		return err
	}
	args := []string{"--kubeconfig=" + c.Kubeconfig, "--manage-all-nodes=false", "--manage-nodes-with-label-selector=" +
		AliveLabel + "=true",
		fmt.Sprintf("--node-lease-duration-seconds=%d", int(nodeLease.Seconds()))}
	for _, dir := range []string{"node/fast", "node/heartbeat-with-lease", "pod/fast"} {
		files, err := filepath.Glob(filepath.Join(module, "kustomize", "stage", filepath.FromSlash(dir), "*-*.yaml"))
		if err != nil {
			return err
		}
		if len(files) == 0 {
			return fmt.Errorf("kwok has no stages %s: %w", dir, os.ErrNotExist)
		}
		for _, file := range files {
			args = append(args, "--config="+file)
		}
	}
	_, err = c.run(ctx, "kwok", args...)
	return err
}

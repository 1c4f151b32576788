package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/pasted"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

const (
	// retryKubeconfig is the time between two attempts to use the kubeconfig of an external workload cluster.
	retryKubeconfig = 5 * time.Second
	// probeTimeout limits one attempt.
	probeTimeout = 15 * time.Second
)

// WorkloadOptions configures [SetupWorkload].
type WorkloadOptions struct {
	scope.Scope
	// External means that the workload cluster is not the operator's own cluster.
	External bool
	// Adjust sets the operator's client settings (such as rate limits) in a client configuration. Optional.
	Adjust func(*rest.Config)
	// Options configure the client and cache of an external cluster. Optional.
	Options []cluster.Option
	// Problems receives what is wrong with the kubeconfig of an external cluster.
	Problems *scope.Problems
}

// SetupWorkload calls setup with the workload cluster, in which the Nodes and Pods are. This is the manager's own
// cluster or an external one. For an external cluster, the manager's cluster must have a Secret with its kubeconfig.
// SetupWorkload then calls setup while the manager runs, as soon as the external cluster accepts this kubeconfig. Until
// then, it reports what is wrong. When the kubeconfig changes later, the manager exits with an error. After its
// restart, it uses the new kubeconfig.
func SetupWorkload(mgr ctrl.Manager, o WorkloadOptions, setup func(cluster.Cluster) error) error {
	if !o.External {
		return setup(mgr)
	}
	at := o.Key(KubeconfigSecret(o.ClusterName()))
	report := func(err error) {
		o.Problems.Set("the kubeconfig of the workload cluster", v1beta1.KubeconfigFailedReason, err)
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		text, config := o.awaitKubeconfig(ctx, mgr.GetAPIReader(), at, report)
		if config == nil {
			return nil
		}
		c, err := cluster.New(config, o.Options...)
		if err != nil {
			return fmt.Errorf("workload cluster %s: %w", config.Host, err)
		}
		// The setup adds indexes, which is not possible any more once the cache of c runs.
		if err := setup(c); err != nil {
			return err
		}
		if err := mgr.Add(c); err != nil {
			return err
		}
		return waitForChange(ctx, mgr.GetAPIReader(), at, text, report, o.Log)
	}))
}

// awaitKubeconfig waits until the workload cluster accepts the kubeconfig in the Secret. It returns the kubeconfig, or
// nil when ctx ends. Until then, it calls report with the problem.
func (o *WorkloadOptions) awaitKubeconfig(ctx context.Context, reader client.Reader, at types.NamespacedName,
	report func(error)) ([]byte, *rest.Config) {
	for {
		text, config, err := o.tryKubeconfig(ctx, reader, at)
		if ctx.Err() != nil {
			return nil, nil
		}
		report(err)
		if err == nil {
			return text, config
		}
		o.Log.Warn("waiting for the kubeconfig of the workload cluster", "error", err)
		if tasks.Sleep(ctx, retryKubeconfig) != nil {
			return nil, nil
		}
	}
}

// tryKubeconfig reads the kubeconfig in the Secret, and sends a request with it.
func (o *WorkloadOptions) tryKubeconfig(ctx context.Context, reader client.Reader, at types.NamespacedName) ([]byte,
	*rest.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	text, err := readKubeconfig(ctx, reader, at)
	if err != nil {
		return nil, nil, err
	}
	config, err := parseKubeconfig(text)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig of the workload cluster in Secret %s: %w", at, err)
	}
	if o.Adjust != nil {
		o.Adjust(config)
	}
	err = requestNodes(ctx, config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig of the workload cluster in Secret %s: %w", at, err)
	}
	return text, config, nil
}

func readKubeconfig(ctx context.Context, reader client.Reader, at types.NamespacedName) ([]byte, error) {
	var secret corev1.Secret
	if err := reader.Get(ctx, at, &secret); apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("kubeconfig of the workload cluster: Secret %s is missing: with NSTANCE_CAPI_ENDPOINT "+
			"it must contain the kubeconfig in key %s", at, kubeconfigKey)
	} else if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the workload cluster: %w", err)
	}
	return secret.Data[kubeconfigKey], nil
}

// parseKubeconfig parses a self-contained kubeconfig. It refuses references to files and programs.
func parseKubeconfig(text []byte) (*rest.Config, error) {
	if len(text) == 0 {
		return nil, fmt.Errorf("key %s is empty", kubeconfigKey)
	}
	parsed, err := clientcmd.Load(text)
	if err != nil {
		return nil, errors.New("the text is not a kubeconfig") // the cause might contain credentials
	}
	for _, user := range parsed.AuthInfos {
		user.Token = pasted.Clean(user.Token)
	}
	if err := checkSelfContained(parsed); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewNonInteractiveClientConfig(*parsed, parsed.CurrentContext, &clientcmd.ConfigOverrides{},
		nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("context %q: %w", parsed.CurrentContext, err)
	}
	return config, nil
}

// checkSelfContained returns an error if a kubeconfig references files or programs.
func checkSelfContained(c *clientcmdapi.Config) error {
	for name, one := range c.Clusters {
		if one.CertificateAuthority != "" {
			return fmt.Errorf("cluster %q references a file: use certificate-authority-data", name)
		}
	}
	for name, user := range c.AuthInfos {
		switch {
		case user.Exec != nil || user.AuthProvider != nil:
			return fmt.Errorf("user %q runs a program, which is not allowed: use a token or a client certificate",
				name)
		case user.ClientCertificate != "" || user.ClientKey != "" || user.TokenFile != "":
			return fmt.Errorf("user %q references a file: use client-certificate-data and client-key-data, or token",
				name)
		}
	}
	return nil
}

// waitForChange returns an error when the kubeconfig differs from text, and nil when ctx ends. After each check, it
// calls report with the problem of the kubeconfig, or with nil if there is none.
func waitForChange(ctx context.Context, reader client.Reader, at types.NamespacedName, text []byte,
	report func(error), log *slog.Logger) error {
	for tasks.Sleep(ctx, recheck) == nil {
		now, err := readKubeconfig(ctx, reader, at)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of the program is no failure to read the kubeconfig
		}
		report(err)
		if err != nil {
			log.Warn("failed to read the kubeconfig of the workload cluster; the current one stays in use", "error",
				err)
			continue
		}
		if !bytes.Equal(pasted.Clean(now), pasted.Clean(text)) {
			if _, err := parseKubeconfig(now); err != nil {
				report(fmt.Errorf("kubeconfig of the workload cluster in Secret %s: %w", at, err))
				log.Error("the new kubeconfig of the workload cluster is invalid; the current one stays in use",
					"error", err)
				continue
			}
			return fmt.Errorf("the kubeconfig in Secret %s has changed: restarting to use it", at)
		}
	}
	return nil
}

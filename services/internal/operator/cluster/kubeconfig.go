package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
)

const (
	// kubeconfigKey is the Secret's key for the kubeconfig. Cluster API's util/secret defines it as KubeconfigDataName.
	kubeconfigKey = "value"
	// tokenLife is the requested lifetime of a token. The API server may choose another.
	tokenLife = time.Hour
	// recheck is the time between two checks of the Secret.
	recheck = time.Minute
)

// KubeconfigSecret returns the name of the Secret with a Cluster's kubeconfig (Cluster API contract).
func KubeconfigSecret(cluster string) string { return cluster + "-kubeconfig" }

// kubeconfigKeeper maintains the Secret with which Cluster API's core reaches the workload cluster. The token in this
// Secret is valid for an hour.
type kubeconfigKeeper struct {
	Options

	writing sync.Mutex // Held while the Secret is written.
	renewAt time.Time  // Guarded by writing.

	mu      sync.Mutex
	err     error
	changed chan struct{}
}

func newKubeconfigKeeper(o Options) *kubeconfigKeeper {
	k := &kubeconfigKeeper{Options: o, changed: make(chan struct{}, 1)}
	if o.External == nil {
		k.err = errors.New("the kubeconfig for Cluster API has not been created yet")
	}
	return k
}

// problem returns the reason why there is no valid kubeconfig, "" if there is one.
func (k *kubeconfigKeeper) problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		return ""
	}
	return k.err.Error()
}

// notifyChanges calls fn whenever the method problem returns another result than before, until ctx ends.
func (k *kubeconfigKeeper) notifyChanges(ctx context.Context, fn func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.changed:
			fn()
		}
	}
}

// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=serviceaccounts/token,resourceNames=nstance-capi-workload,verbs=create

// run maintains the kubeconfig until ctx ends. After a failure, it records an event and tries again.
func (k *kubeconfigKeeper) run(ctx context.Context) error {
	delays := &backoff.ExponentialBackOff{InitialInterval: 2 * time.Second, RandomizationFactor: 0.5, Multiplier: 2,
		MaxInterval: time.Minute}
	delays.Reset()
	for {
		wait := recheck
		if err := k.updateSecret(ctx, nil); err == nil {
			delays.Reset()
		} else if ctx.Err() == nil {
			wait = delays.NextBackOff()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// updateSecret calls ensureSecret and records the result.
func (k *kubeconfigKeeper) updateSecret(ctx context.Context, cluster *clusterv1.Cluster) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	err := k.ensureSecret(ctx, cluster)
	if err == nil || ctx.Err() == nil {
		k.recordResult(ctx, err)
	}
	return err
}

// recordResult stores the result of the last attempt. If the result has changed, recordResult logs it and records an
// event.
func (k *kubeconfigKeeper) recordResult(ctx context.Context, err error) {
	k.mu.Lock()
	had := k.err
	k.err = err
	k.mu.Unlock()
	if (had == nil) == (err == nil) && (err == nil || had.Error() == err.Error()) {
		return
	}
	select {
	case k.changed <- struct{}{}:
	default:
	}
	if err == nil || errors.Is(err, errNoCluster) {
		return
	}
	k.Log.Warn("failed to renew the kubeconfig for Cluster API; trying again", "error", err)
	var infra v1beta1.NstanceCluster
	if k.Client.Get(ctx, k.objectKey(), &infra) == nil {
		k.Recorder.Eventf(&infra, nil, corev1.EventTypeWarning, v1beta1.KubeconfigFailedReason, "Kubeconfig", "%s",
			err.Error())
	}
}

// errNoCluster is returned while the Cluster that owns the Secret does not exist.
var errNoCluster = errors.New("the Cluster has not been created yet")

// ensureSecret creates the Secret if it is missing. It renews the Secret after half of the token's lifetime, or if the
// Secret belongs to an earlier Cluster. If cluster is nil, ensureSecret reads the Cluster from the cache.
func (k *kubeconfigKeeper) ensureSecret(ctx context.Context, cluster *clusterv1.Cluster) error {
	if cluster == nil {
		cluster = &clusterv1.Cluster{}
		if err := k.Client.Get(ctx, k.objectKey(), cluster); apierrors.IsNotFound(err) {
			return errNoCluster
		} else if err != nil {
			return fmt.Errorf("read Cluster: %w", err)
		}
	}
	var secret corev1.Secret
	at := types.NamespacedName{Namespace: k.Namespace, Name: KubeconfigSecret(k.objectKey().Name)}
	err := k.Client.Get(ctx, at, &secret)
	missing := apierrors.IsNotFound(err)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("read Secret %s: %w", at, err)
	case !missing && !secret.DeletionTimestamp.IsZero():
		return nil
	case !missing && len(secret.Data[kubeconfigKey]) > 0 && k.Now().Before(k.renewAt) && !isForeign(&secret, cluster):
		return nil
	}
	text, expires, err := k.newKubeconfigText(ctx)
	if err != nil {
		return err
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[clusterv1.ClusterNameLabel] = k.objectKey().Name
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[kubeconfigKey] = text
	if missing || isForeign(&secret, cluster) {
		secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(),
			Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID}}
	}
	if missing {
		secret.Namespace, secret.Name, secret.Type = at.Namespace, at.Name, clusterv1.ClusterSecretType
		err = k.Client.Create(ctx, &secret)
	} else {
		err = k.Client.Update(ctx, &secret)
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", at, err)
	}
	now := k.Now()
	k.renewAt = now.Add(expires.Sub(now) / 2)
	k.Log.Info("renewed the token in the kubeconfig for Cluster API", "secret", at.Name, "expires", expires)
	return nil
}

// isForeign reports whether the Secret belongs to an earlier Cluster of the same name. If so, Kubernetes is about to
// delete the Secret.
func isForeign(secret *corev1.Secret, cluster *clusterv1.Cluster) bool {
	return slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == clusterv1.ClusterKind && o.UID != cluster.UID
	})
}

// newKubeconfigText requests a token. It returns a kubeconfig that contains the token, and the time at which the token
// expires.
func (k *kubeconfigKeeper) newKubeconfigText(ctx context.Context) ([]byte, time.Time, error) {
	seconds := int64(tokenLife / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.ServiceAccount}}
	err := k.Client.SubResource("token").Create(ctx, account, request)
	if apierrors.IsNotFound(err) {
		if err := k.createAccount(ctx); err != nil {
			return nil, time.Time{}, err
		}
		err = k.Client.SubResource("token").Create(ctx, account, request)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("request a token of ServiceAccount %s/%s: %w", k.Namespace,
			k.ServiceAccount, err)
	}
	ca, err := caOf(k.Config)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := encodeKubeconfig(k.objectKey().Name, k.Config, ca, request.Status.Token)
	return text, request.Status.ExpirationTimestamp.Time, err
}

// caOf returns the CA of the API server in a client configuration.
func caOf(config *rest.Config) ([]byte, error) {
	if len(config.CAData) > 0 || config.CAFile == "" {
		return config.CAData, nil
	}
	text, err := os.ReadFile(config.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's CA: %w", err)
	}
	return text, nil
}

// encodeKubeconfig returns a kubeconfig for the API server in a client configuration.
func encodeKubeconfig(name string, config *rest.Config, ca []byte, token string) ([]byte, error) {
	endpoint, err := endpointOf(config)
	if err != nil {
		return nil, err
	}
	text, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: "https://" + endpoint.String(),
			CertificateAuthorityData: ca,
			TLSServerName:            config.TLSClientConfig.ServerName, InsecureSkipTLSVerify: config.Insecure}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, errors.New("encode the kubeconfig") // the cause might contain the token
	}
	return text, nil
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
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
	// kubeconfigKey is the key in the Secret (Cluster API contract: util/secret, KubeconfigDataName).
	kubeconfigKey = "value"
	// tokenLife is how long a token is asked to last. The API server may give another life.
	tokenLife = time.Hour
	// recheck is how often the Secret is looked at.
	recheck = time.Minute
)

// KubeconfigSecret is the name of the Secret with the kubeconfig of a Cluster (Cluster API contract).
func KubeconfigSecret(cluster string) string { return cluster + "-kubeconfig" }

// kubeconfig keeps the Secret from which Cluster API's core reaches the workload cluster, with tokens that last an
// hour.
type kubeconfig struct {
	Options

	mu    sync.Mutex
	err   error
	renew time.Time
	news  chan struct{}
}

func newKubeconfig(o Options) *kubeconfig {
	k := &kubeconfig{Options: o, news: make(chan struct{}, 1)}
	if o.External == nil {
		k.err = errors.New("the kubeconfig for Cluster API is not made yet")
	}
	return k
}

// problem is why there is no kubeconfig, in words; "" when there is one.
func (k *kubeconfig) problem() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		return ""
	}
	return k.err.Error()
}

// tell calls fn whenever problem has changed, until ctx ends.
func (k *kubeconfig) tell(ctx context.Context, fn func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.news:
			fn()
		}
	}
}

// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=serviceaccounts/token,resourceNames=nstance-capi-workload,verbs=create

// run keeps the kubeconfig until ctx ends. Failures are an event and tried again.
func (k *kubeconfig) run(ctx context.Context) error {
	delays := &backoff.ExponentialBackOff{InitialInterval: 2 * time.Second, RandomizationFactor: 0.5, Multiplier: 2,
		MaxInterval: time.Minute}
	delays.Reset()
	for {
		wait := recheck
		if err := k.keep(ctx); err == nil {
			delays.Reset()
			k.set(ctx, nil)
		} else if ctx.Err() == nil {
			wait = delays.NextBackOff()
			k.set(ctx, err)
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

// set takes over how the last attempt went, and tells people if that is news.
func (k *kubeconfig) set(ctx context.Context, err error) {
	k.mu.Lock()
	had := k.err
	k.err = err
	k.mu.Unlock()
	if (had == nil) == (err == nil) && (err == nil || had.Error() == err.Error()) {
		return
	}
	select {
	case k.news <- struct{}{}:
	default:
	}
	if err == nil || errors.Is(err, errNoCluster) {
		return
	}
	k.Log.Warn("The kubeconfig for Cluster API is not renewed; trying again", "error", err)
	var infra v1beta1.NstanceCluster
	if k.Client.Get(ctx, k.name(), &infra) == nil {
		k.Recorder.Eventf(&infra, nil, corev1.EventTypeWarning, v1beta1.KubeconfigFailedReason, "Kubeconfig", "%s",
			err.Error())
	}
}

// errNoCluster: the Cluster that the Secret belongs to is not made yet.
var errNoCluster = errors.New("the Cluster is not made yet")

// keep makes the Secret, or renews it if its token is due.
func (k *kubeconfig) keep(ctx context.Context) error {
	var secret corev1.Secret
	at := types.NamespacedName{Namespace: k.Namespace, Name: KubeconfigSecret(k.name().Name)}
	err := k.Client.Get(ctx, at, &secret)
	missing := apierrors.IsNotFound(err)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("read Secret %s: %w", at, err)
	case !missing && !secret.DeletionTimestamp.IsZero():
		return nil
	case !missing && len(secret.Data[kubeconfigKey]) > 0 && k.Now().Before(k.renew):
		return nil
	}
	var cluster clusterv1.Cluster
	if err := k.Client.Get(ctx, k.name(), &cluster); apierrors.IsNotFound(err) {
		return errNoCluster
	} else if err != nil {
		return fmt.Errorf("read Cluster: %w", err)
	}
	text, expires, err := k.make(ctx)
	if err != nil {
		return err
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	secret.Labels[clusterv1.ClusterNameLabel] = k.name().Name
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[kubeconfigKey] = text
	if missing {
		secret.Namespace, secret.Name, secret.Type = at.Namespace, at.Name, clusterv1.ClusterSecretType
		secret.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(),
			Kind: clusterv1.ClusterKind, Name: cluster.Name, UID: cluster.UID}}
		err = k.Client.Create(ctx, &secret)
	} else {
		err = k.Client.Update(ctx, &secret)
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", at, err)
	}
	now := k.Now()
	k.renew = now.Add(expires.Sub(now) / 2)
	k.Log.Info("The kubeconfig for Cluster API has a new token", "secret", at.Name, "expires", expires)
	return nil
}

// make asks for a token, and writes a kubeconfig with it.
func (k *kubeconfig) make(ctx context.Context) ([]byte, time.Time, error) {
	seconds := int64(tokenLife / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.ServiceAccount}}
	if err := k.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, time.Time{}, fmt.Errorf("request a token of ServiceAccount %s/%s: %w", k.Namespace,
			k.ServiceAccount, err)
	}
	ca, err := authorityOf(k.Config)
	if err != nil {
		return nil, time.Time{}, err
	}
	text, err := encode(k.name().Name, k.Config, ca, request.Status.Token)
	return text, request.Status.ExpirationTimestamp.Time, err
}

func authorityOf(config *rest.Config) ([]byte, error) {
	if len(config.CAData) > 0 || config.CAFile == "" {
		return config.CAData, nil
	}
	text, err := os.ReadFile(config.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's CA: %w", err)
	}
	return text, nil
}

// encode writes a kubeconfig for the API server that config reaches.
func encode(name string, config *rest.Config, ca []byte, token string) ([]byte, error) {
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
		return nil, errors.New("write a kubeconfig") // the cause might quote the token
	}
	return text, nil
}

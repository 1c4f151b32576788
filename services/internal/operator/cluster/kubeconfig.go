package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/reconnect"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

const (
	// kubeconfigKey is the Secret's key for the kubeconfig. Cluster API's util/secret defines it as KubeconfigDataName.
	kubeconfigKey = "value"
	// tokenLife is the requested lifetime of a token. The API server may choose another.
	tokenLife = time.Hour
	// recheck is the time between two checks of the Secret.
	recheck = 20 * time.Second
)

// KubeconfigSecret returns the name of the Secret with a Cluster's kubeconfig (Cluster API contract).
func KubeconfigSecret(cluster string) string { return cluster + "-kubeconfig" }

// kubeconfigKeeper maintains the Secret with which Cluster API's core reaches the workload cluster. The token in this
// Secret is valid for an hour.
type kubeconfigKeeper struct {
	Options
	// try sends a request with a kubeconfig, and returns the error of the API server.
	try func(ctx context.Context, text []byte) error

	writing sync.Mutex // Held while the Secret is written.
	renewAt time.Time  // Guarded by writing.
	written []byte     // The kubeconfig that was written last. Guarded by writing.
	ca      []byte     // The CA in it. Guarded by writing.
}

// +kubebuilder:rbac:groups="",namespace=nstance-system,resources=serviceaccounts/token,resourceNames=nstance-capi-workload,verbs=create

// run maintains the kubeconfig until ctx ends. After a failure, it tries again.
func (k *kubeconfigKeeper) run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		wait := recheck
		if err := k.updateSecret(ctx, nil); err == nil {
			failures = 0
		} else {
			failures++
			wait = reconnect.Backoff(2*time.Second, recheck, failures)
		}
		_ = tasks.Sleep(ctx, wait) // the loop checks ctx
	}
	return nil
}

// updateSecret calls ensureSecret and reports a failure, unless there is no Cluster yet.
func (k *kubeconfigKeeper) updateSecret(ctx context.Context, cluster *clusterv1.Cluster) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	err := k.ensureSecret(ctx, cluster)
	if err != nil && ctx.Err() != nil || errors.Is(err, errNoCluster) {
		return err
	}
	if k.Problems.Set("the kubeconfig for Cluster API", v1beta1.KubeconfigFailedReason, err) && err != nil {
		k.Log.Warn("failed to renew the kubeconfig for Cluster API; trying again", "error", err)
	}
	return err
}

// errNoCluster is returned while the Cluster that owns the Secret does not exist.
var errNoCluster = errors.New("the Cluster has not been created yet")

// ensureSecret creates the Secret if it is missing. It renews the Secret after half of the token's lifetime, if its
// content is not what was written last, if the API server has another CA, or if it belongs to an earlier Cluster. If
// cluster is nil, ensureSecret reads the Cluster from the cache.
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
	ca, caErr := caOf(k.Config)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("read Secret %s: %w", at, err)
	case !missing && !secret.DeletionTimestamp.IsZero():
		return nil
	case !missing && bytes.Equal(secret.Data[kubeconfigKey], k.written) && k.Now().Before(k.renewAt) &&
		secret.Labels[clusterv1.ClusterNameLabel] == k.objectKey().Name && !isForeign(&secret, cluster) &&
		len(secret.OwnerReferences) > 0 && (caErr != nil || bytes.Equal(ca, k.ca)):
		err := k.try(ctx, k.written)
		switch {
		case apierrors.IsForbidden(err):
			return k.restoreRights(ctx, err)
		case !apierrors.IsUnauthorized(err):
			// Whether the API server answers is not the question here: the operator's own requests show that.
			return nil
		}
		k.Log.Warn("the API server refuses the token in the kubeconfig for Cluster API; renewing it", "error", err)
	}
	if caErr != nil {
		return caErr
	}
	text, life, err := k.newKubeconfigText(ctx, ca)
	if err != nil {
		return err
	}
	metav1.SetMetaDataLabel(&secret.ObjectMeta, clusterv1.ClusterNameLabel, k.objectKey().Name)
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[kubeconfigKey] = text
	if missing || isForeign(&secret, cluster) || len(secret.OwnerReferences) == 0 {
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
	k.renewAt, k.written, k.ca = k.Now().Add(life/2), text, ca
	k.Log.Info("renewed the token in the kubeconfig for Cluster API", "secret", at.Name, "lifetime", life)
	return nil
}

// listNodes lists one Node with a kubeconfig.
func listNodes(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	config, err := parseKubeconfig(text)
	if err != nil {
		return err
	}
	return requestNodes(ctx, config)
}

// requestNodes lists one Node with a client configuration, to see what the API server answers.
func requestNodes(ctx context.Context, config *rest.Config) error {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if _, err = kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	return nil
}

// restoreRights creates the permissions of the ServiceAccount again, if the operator may do that. The error refused is
// the API server's answer to a request of the ServiceAccount.
func (k *kubeconfigKeeper) restoreRights(ctx context.Context, refused error) error {
	if err := k.createAccount(ctx); err != nil {
		return fmt.Errorf("ServiceAccount %s/%s may not list Nodes: apply services/operator/kustomize/rbac (%w)",
			k.Namespace, k.ServiceAccount, refused)
	}
	return nil
}

// isForeign reports whether the Secret belongs to an earlier Cluster of the same name. If so, Kubernetes is about to
// delete the Secret.
func isForeign(secret *corev1.Secret, cluster *clusterv1.Cluster) bool {
	return slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == clusterv1.ClusterKind && o.UID != cluster.UID
	})
}

// newKubeconfigText requests a token. It returns a kubeconfig with the token and the CA, and the lifetime of the token.
// The time at which the token expires is on the API server's clock, so newKubeconfigText does not use it.
func (k *kubeconfigKeeper) newKubeconfigText(ctx context.Context, ca []byte) ([]byte, time.Duration, error) {
	seconds := int64(tokenLife / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.ServiceAccount}}
	err := k.Client.SubResource("token").Create(ctx, account, request)
	if apierrors.IsNotFound(err) {
		if err := k.createAccount(ctx); err != nil {
			return nil, 0, err
		}
		err = k.Client.SubResource("token").Create(ctx, account, request)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("request a token of ServiceAccount %s/%s: %w", k.Namespace,
			k.ServiceAccount, err)
	}
	life := tokenLife
	if granted := request.Spec.ExpirationSeconds; granted != nil { // the API server may have changed it
		life = time.Duration(*granted) * time.Second
	}
	text, err := encodeKubeconfig(k.objectKey().Name, k.Config, ca, request.Status.Token)
	return text, life, err
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

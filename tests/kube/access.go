package kube

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ForUser is the configuration of a user with a certificate of the cluster's CA. RBAC decides what it may do; the group system:masters may all.
func (c *Cluster) ForUser(name string, groups ...string) (*rest.Config, error) {
	pair, err := c.pki.client(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("certificate of user %s: %w", name, err)
	}
	return c.config(rest.TLSClientConfig{CertData: pair.cert, KeyData: pair.key}), nil
}

// ForServiceAccount is the configuration of a service account, which must exist, with a token for one hour.
func (c *Cluster) ForServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	config := c.config(rest.TLSClientConfig{})
	config.BearerToken = request.Status.Token
	return config, nil
}

// config has no limit of requests of its own: the server's priorities do.
func (c *Cluster) config(identity rest.TLSClientConfig) *rest.Config {
	identity.CAData = c.pki.pem
	return &rest.Config{Host: c.URL, TLSClientConfig: identity, QPS: -1}
}

// WriteKubeconfig writes a configuration, credentials included, as a kubeconfig file.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "kube-test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	return clientcmd.WriteToFile(*file, path) // mode 0600
}

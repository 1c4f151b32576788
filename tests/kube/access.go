package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	neturl "net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ForUser returns a configuration for a user with a certificate of the cluster's CA. RBAC decides what the user may do.
// Members of the group system:masters may do everything.
func (c *Cluster) ForUser(name string, groups ...string) (*rest.Config, error) {
	pair, err := c.pki.client(name, groups...)
	if err != nil {
		return nil, fmt.Errorf("certificate of user %s: %w", name, err)
	}
	return c.config(rest.TLSClientConfig{CertData: pair.cert, KeyData: pair.key}), nil
}

// ForServiceAccount returns a configuration for an existing service account, with a token that is valid for one hour.
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

// config returns a client configuration without a client-side rate limit. The API server limits requests by priority
// and fairness.
func (c *Cluster) config(identity rest.TLSClientConfig) *rest.Config {
	identity.CAData = c.pki.pem
	config := &rest.Config{Host: c.URL, TLSClientConfig: identity, QPS: -1}
	if c.Network != nil {
		config.Dial = c.Network.Dial
	}
	return config
}

// WriteKubeconfig writes a configuration, including its credentials, to a kubeconfig file.
func WriteKubeconfig(path string, config *rest.Config) error {
	const name = "kube-test"
	file := clientcmdapi.NewConfig()
	file.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
		Token: config.BearerToken}
	file.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	file.CurrentContext = name
	return clientcmd.WriteToFile(*file, path) // mode 0600
}

// Front serves a proxy of the API server on another loopback address until ctx ends. Every request goes to the function
// "handle". To forward a request to the API server, "handle" calls "next". A client uses the cluster's configuration
// with the returned URL as its Host.
func (c *Cluster) Front(ctx context.Context, handle func(w http.ResponseWriter, r *http.Request, next http.Handler)) (
	url string, err error) {
	pair, err := c.pki.server("front")
	if err != nil {
		return "", err
	}
	cert, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return "", err
	}
	upstream, err := neturl.Parse(c.URL)
	if err != nil {
		return "", err
	}
	transport, err := rest.TransportFor(c.config(rest.TLSClientConfig{}))
	if err != nil {
		return "", err
	}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(upstream) }}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", loopback+":0")
	if err != nil {
		return "", err
	}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(w, r, proxy) })}
	go func() { _ = server.ServeTLS(listener, "", "") }() // Serve returns when the server is closed.
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "https://" + listener.Addr().String(), nil
}

package kube

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestCertificates(t *testing.T) {
	ca, err := newPKI()
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.server("kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	user, err := ca.client("jane", "admins", "developers")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for name, c := range map[string]struct {
		pair
		usage x509.ExtKeyUsage
		host  string
	}{"server": {server, x509.ExtKeyUsageServerAuth, "127.0.0.1"}, "client": {user, x509.ExtKeyUsageClientAuth, ""}} {
		cert := decode(t, c.cert)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{c.usage},
			DNSName: c.host}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		other := x509.ExtKeyUsageServerAuth
		if c.usage == other {
			other = x509.ExtKeyUsageClientAuth
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{other}}); err == nil {
			t.Errorf("%s: may be used as the other", name)
		}
		if name == "client" && (cert.Subject.CommonName != "jane" || !slices.Equal(cert.Subject.Organization,
			[]string{"admins", "developers"})) {
			t.Errorf("subject %s", cert.Subject)
		}
	}
}

func decode(t *testing.T, raw []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	want := &rest.Config{Host: "https://127.0.0.1:1", BearerToken: "token",
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), CertData: []byte("cert"), KeyData: []byte("key")}}
	if err := WriteKubeconfig(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != want.Host || got.BearerToken != want.BearerToken || string(got.CAData) != "ca" ||
		string(got.CertData) != "cert" || string(got.KeyData) != "key" {
		t.Errorf("got %+v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
}

func TestReadCRDs(t *testing.T) {
	dir := t.TempDir()
	crd := func(name string) string {
		return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: " + name + "\n"
	}
	for name, content := range map[string]string{
		"a.yaml":             "---\n" + crd("one") + "---\n\n---\n" + crd("two"),
		"b.yaml":             crd("three"),
		"kustomization.yaml": "kind: Kustomization\nresources: [a.yaml, b.yaml]\n",
		"note.txt":           "not YAML: [",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string][]string{dir: {"one", "two", "three"}, filepath.Join(dir, "b.yaml"): {"three"}} {
		crds, err := readCRDs(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, crd := range crds {
			got = append(got, crd.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	for _, path := range []string{filepath.Join(dir, "kustomization.yaml"), filepath.Join(dir, "nothing"),
		filepath.Join(dir, "note.txt")} {
		if _, err := readCRDs(path); err == nil {
			t.Errorf("%s: no error", filepath.Base(path))
		}
	}
}

func TestLocalWebhook(t *testing.T) {
	ca, err := newPKI()
	if err != nil {
		t.Fatal(err)
	}
	path := "/mutate"
	config := admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Name: "webhook-service",
		Path: &path}}
	(&Cluster{pki: ca}).local(&config, 1234)
	if config.Service != nil || config.URL == nil || *config.URL != "https://127.0.0.1:1234/mutate" ||
		string(config.CABundle) != string(ca.pem) {
		t.Errorf("got %+v", config)
	}
}

func TestStartNeedsIsolation(t *testing.T) {
	if Isolated() {
		t.Setenv(isolated, "")
	}
	if _, err := Start(t.Context(), Options{Dir: t.TempDir(), CAPI: true}); err == nil ||
		!strings.Contains(err.Error(), "Isolate") {
		t.Errorf("error %v", err)
	}
	if _, err := Start(t.Context(), Options{}); err == nil {
		t.Error("no error without a directory")
	}
}

// TestAPIServer starts only the API server and etcd, as tests of a single package do.
func TestAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	c, err := Start(ctx, Options{Dir: t.TempDir(), CoreCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	t.Logf("started in %s", time.Since(began).Round(10*time.Millisecond))

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nobody"}}
	if err := c.Client.Create(ctx, account); err != nil {
		t.Fatal(err)
	}
	asAccount, err := c.ForServiceAccount(ctx, "default", "nobody")
	if err != nil {
		t.Fatal(err)
	}
	asUser, err := c.ForUser("jane", "developers")
	if err != nil {
		t.Fatal(err)
	}
	for name, config := range map[string]*rest.Config{"account": asAccount, "user": asUser} {
		other, err := client.New(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = other.List(ctx, &corev1.SecretList{})
		if !apierrors.IsForbidden(err) || name == "user" && !strings.Contains(err.Error(), `"jane"`) {
			t.Errorf("%s: got %v, want that RBAC forbids it", name, err)
		}
	}
	pids := []int{c.Process("etcd").PID, c.Process("kube-apiserver").PID}
	c.Stop()
	for _, pid := range pids {
		if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(pid))); err == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
}

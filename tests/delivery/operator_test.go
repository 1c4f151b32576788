package delivery

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/tests/kube"
)

// testOperator runs the real operator with the chart's flags, environment, configuration and service account token. No
// shard is reachable, so the operator does no more than start. Kubernetes must not refuse any request of the operator.
// The tests in tests/operator check the operator's other requests with the same permissions.
func (i *installed) testOperator(t *testing.T) {
	const namespace = "run"
	i.namespace(t, namespace)
	output(t, i.env, i.helm, "install", "nstance-operator", chart, "--namespace", namespace, "-f",
		filepath.Join(chart, "ci", "minimal.yaml"),
		"--set", "crds.install=false", "--set-string",
		`config.shards.us-west-2a.registration_addr=127.0.0.1:1,config.shards.us-west-2a.operator_addr=127.0.0.1:1`)
	i.giveIdentity(t, namespace)

	binary := i.buildOperator(t)
	args, env, probes, metrics := i.commandLine(t, namespace)
	process, err := kube.Run(t.TempDir(), "nstance-operator", binary, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	log := func() string { return kube.Tail(process.Log, 40) }
	wait := func(what string, done func() error) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			err := done()
			if err == nil {
				return
			}
			select {
			case <-process.Ended():
				t.Fatalf("it ended before %s (%v):\n%s", what, err, log())
			case <-time.After(50 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatalf("not %s: %v\n%s", what, err, log())
			}
		}
	}

	wait("ready", func() error { return answers("http://" + probes + "/readyz") })
	wait("alive", func() error { return answers("http://" + probes + "/healthz") })
	infra := &v1beta1.NstanceCluster{}
	wait("provisioned", func() error {
		if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace, Name: "example--default"},
			infra); err != nil {
			return err
		}
		if provisioned := infra.Status.Initialization.Provisioned; provisioned == nil || !*provisioned {
			return fmt.Errorf("status %+v", infra.Status)
		}
		return i.Client.Get(i.ctx, client.ObjectKeyFromObject(infra), &clusterv1.Cluster{})
	})
	secret := &corev1.Secret{}
	wait("giving Cluster API a way in", func() error {
		return i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace, Name: "example--default-kubeconfig"}, secret)
	})
	i.checkKubeconfig(t, secret.Data["value"])

	text := ""
	wait("measuring", func() (err error) {
		text, err = get("http://" + metrics + "/metrics")
		return err
	})
	for _, name := range []string{"nstance_operator_shard_reachable",
		"nstance_operator_certificate_expiry_timestamp_seconds", "leader_election_master_status",
		"controller_runtime_reconcile_total"} {
		if !regexp.MustCompile(`(?m)^` + name + `[ {]`).MatchString(text) {
			t.Errorf("metrics have no %s", name)
		}
	}

	if err := process.Stop(20 * time.Second); err != nil || process.ExitCode() != 0 {
		t.Errorf("on SIGTERM: %v, exit code %d\n%s", err, process.ExitCode(), log())
	}
	raw, err := os.ReadFile(process.Log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(strings.ToLower(line), "forbidden") {
			t.Errorf("it lacks a right: %s", line)
		}
	}
	output(t, i.env, i.helm, "uninstall", "nstance-operator", "--namespace", namespace)
}

// buildOperator builds the operator and returns the program's path.
func (i *installed) buildOperator(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "nstance-operator")
	output(t, nil, "go", "build", "-tags", "grpcnotrace", "-o", binary, "../../services/cmd/nstance-operator")
	return binary
}

// giveIdentity stores the results of a registration: the CA, a key and a certificate.
func (i *installed) giveIdentity(t *testing.T, namespace string) {
	t.Helper()
	now := time.Now()
	ca, err := authority.CreateCA("example", rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	id, err := ident.NewID(ident.OperatorPrefix, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.IssueClient(authority.ClientSpec{Identity: authority.Identity{Role: authority.RoleOperator,
		Cluster: "example", Tenant: "default", ID: id}, PublicKey: public}, rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	encoded := func(kind string, der []byte, err error) []byte {
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	privatePEM := encoded("PRIVATE KEY", der, err)
	der, err = x509.MarshalPKIXPublicKey(public)
	publicPEM := encoded("PUBLIC KEY", der, err)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name} }
	for _, object := range []client.Object{
		&corev1.ConfigMap{ObjectMeta: meta("nstance-cluster-ca"), Data: map[string]string{
			"ca.crt": string(authority.EncodeCertificate(ca.Certificate()))}},
		&corev1.Secret{ObjectMeta: meta("nstance-operator-key"), Data: map[string][]byte{"private.key": privatePEM,
			"public.key": publicPEM}},
		&corev1.Secret{ObjectMeta: meta("nstance-operator-cert"), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": authority.EncodeCertificate(cert), "tls.key": privatePEM}},
	} {
		if err := i.Client.Create(i.ctx, object); err != nil {
			t.Fatal(err)
		}
	}
}

// commandLine returns the arguments and the environment of the Deployment's container. It replaces addresses and paths,
// so that the program can run on this machine.
func (i *installed) commandLine(t *testing.T, namespace string) (args, env []string, probes, metrics string) {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace, Name: "nstance-operator"},
		deployment); err != nil {
		t.Fatal(err)
	}
	settings := &corev1.ConfigMap{}
	if err := i.Client.Get(i.ctx, client.ObjectKey{Namespace: namespace,
		Name: deployment.Spec.Template.Spec.Volumes[0].ConfigMap.Name}, settings); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(settings.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	account, err := i.ForServiceAccount(i.ctx, namespace, deployment.Spec.Template.Spec.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := kube.WriteKubeconfig(kubeconfig, account); err != nil {
		t.Fatal(err)
	}
	probes, metrics = freeAddress(t), freeAddress(t)
	container := deployment.Spec.Template.Spec.Containers[0]
	replaced := 0
	for _, arg := range container.Args {
		for from, to := range map[string]string{
			"--config=/etc/nstance/operator/":   "--config=" + dir + "/",
			"--health-probe-bind-address=:8081": "--health-probe-bind-address=" + probes,
			"--metrics-bind-address=:8080":      "--metrics-bind-address=" + metrics,
		} {
			if strings.HasPrefix(arg, from) {
				arg = to + strings.TrimPrefix(arg, from)
				replaced++
			}
		}
		args = append(args, arg)
	}
	if replaced != 3 || !slices.Contains(args, "--leader-elect") {
		t.Fatalf("arguments %q", container.Args)
	}
	env = []string{"KUBECONFIG=" + kubeconfig}
	for _, variable := range container.Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			value = namespace
		}
		env = append(env, variable.Name+"="+value)
	}
	return args, env, probes, metrics
}

// freeAddress returns a loopback address with a port that is free at this moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// checkKubeconfig checks the kubeconfig that the operator makes for Cluster API. Requests with the kubeconfig must
// succeed, but its account must have only the necessary permissions.
func (i *installed) checkKubeconfig(t *testing.T, kubeconfig []byte) {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	// The operator's configuration contains the API server's address for the kubeconfig. In this test, this address
	// belongs to the API server that the operator itself uses.
	as, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := as.List(i.ctx, &corev1.NodeList{}); err != nil {
		t.Errorf("list nodes: %v", err)
	}
	if err := as.List(i.ctx, &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v, want that it is forbidden", err)
	}
}

func answers(url string) error {
	_, err := get(url)
	return err
}

func get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

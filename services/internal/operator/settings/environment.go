package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// NamespaceFile is the file in which Kubernetes gives a pod its namespace.
const NamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Environment is the content of the environment variables.
type Environment struct {
	// Namespace is the namespace of all objects that the operator reads and writes, except Nodes and Pods.
	Namespace string
	// CAConfigMap is the name of the ConfigMap with the CA. CertSecret, KeySecret and NonceSecret are names of Secrets
	// with the operator's identity.
	CAConfigMap, CertSecret, KeySecret, NonceSecret string
	// Endpoint is the API server of an external workload cluster, zero if the operator's own cluster is the workload
	// cluster.
	Endpoint clusterv1.APIEndpoint
	// ServiceAccount is the service account whose tokens are in Cluster API's kubeconfig.
	ServiceAccount string
	// JSON means that requests to the API server use JSON instead of protocol buffers.
	JSON bool
}

// Variable documents an environment variable.
type Variable struct{ Name, Default, Text string }

// Variables returns all variables in the order of the documentation.
func Variables() []Variable {
	return []Variable{
		{"NSTANCE_NAMESPACE", "",
			"namespace of the objects, Secrets and ConfigMaps of Nstance and Cluster API " +
				"(default: the operator's own namespace)"},
		{"NSTANCE_CA_CONFIGMAP", "nstance-cluster-ca",
			"ConfigMap with the CA certificate of the Nstance cluster in key ca.crt"},
		{"NSTANCE_CERT_SECRET", "nstance-operator-cert",
			"Secret for the operator's client certificate, written by the operator: keys tls.crt and tls.key"},
		{"NSTANCE_KEY_SECRET", "nstance-operator-key",
			"Secret for the operator's key pair, written by the operator: keys private.key and public.key"},
		{"NSTANCE_NONCE_SECRET", "nstance-operator-nonce",
			"Secret with the registration nonce in key nonce.jwt; only the first registration needs it"},
		{"NSTANCE_CAPI_ENDPOINT", "",
			"API server of an external workload cluster, as host:port or an https URL; you must then provide the " +
				"kubeconfig Secret"},
		{"NSTANCE_CAPI_SERVICEACCOUNT", "nstance-capi-workload",
			"ServiceAccount for the short-lived tokens in the kubeconfig Secret; not used with " +
				"NSTANCE_CAPI_ENDPOINT"},
		{"NSTANCE_K8S_JSON", "", "true: use JSON instead of protocol buffers for requests to the API server"},
	}
}

// ParseEnvironment reads the environment. A variable that is empty or white space counts as unset. The error lists all
// problems.
func ParseEnvironment(getenv func(string) string, namespaceFile string) (Environment, error) {
	value := func(name string) string {
		if v := pasted.Clean(getenv(name)); v != "" {
			return v
		}
		for _, variable := range Variables() {
			if variable.Name == name {
				return variable.Default
			}
		}
		return ""
	}
	var problems []error
	complain := func(name string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
		}
	}
	named := func(name string) string {
		v := value(name)
		complain(name, validateObject(v))
		return v
	}
	env := Environment{
		CAConfigMap: named("NSTANCE_CA_CONFIGMAP"), CertSecret: named("NSTANCE_CERT_SECRET"),
		KeySecret:   named("NSTANCE_KEY_SECRET"),
		NonceSecret: named("NSTANCE_NONCE_SECRET"), ServiceAccount: named("NSTANCE_CAPI_SERVICEACCOUNT"),
		Namespace: value("NSTANCE_NAMESPACE"),
	}
	if env.CertSecret == env.KeySecret || env.CertSecret == env.NonceSecret || env.KeySecret == env.NonceSecret {
		problems = append(problems,
			errors.New(
				"NSTANCE_CERT_SECRET, NSTANCE_KEY_SECRET and NSTANCE_NONCE_SECRET: want three different Secrets"))
	}
	if env.Namespace == "" {
		text, err := os.ReadFile(namespaceFile)
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("must be set outside a cluster")
		}
		complain("NSTANCE_NAMESPACE", err)
		env.Namespace = string(pasted.Clean(text))
	}
	if env.Namespace != "" {
		if problem := validation.IsDNS1123Label(env.Namespace); len(problem) > 0 {
			complain("NSTANCE_NAMESPACE", fmt.Errorf("%q: %s", env.Namespace, strings.Join(problem, "; ")))
		}
	}
	if text := value("NSTANCE_CAPI_ENDPOINT"); text != "" {
		var err error
		env.Endpoint, err = ParseEndpoint(text)
		complain("NSTANCE_CAPI_ENDPOINT", err)
	}
	if text := value("NSTANCE_K8S_JSON"); text != "" {
		var err error
		if env.JSON, err = strconv.ParseBool(text); err != nil {
			complain("NSTANCE_K8S_JSON", fmt.Errorf("%q is neither true nor false", text))
		}
	}
	if len(problems) > 0 {
		return Environment{}, errors.Join(problems...)
	}
	return env, nil
}

func validateObject(name string) error {
	if problem := validation.IsDNS1123Subdomain(name); len(problem) > 0 {
		return fmt.Errorf("%q: %s", name, strings.Join(problem, "; "))
	}
	return nil
}

// ParseEndpoint parses the address of an API server: host:port, or an https URL with the default port 443.
func ParseEndpoint(text string) (clusterv1.APIEndpoint, error) {
	hostport := text
	if strings.Contains(text, "://") {
		u, err := url.Parse(text)
		switch {
		case err != nil:
			return clusterv1.APIEndpoint{}, fmt.Errorf("%q is not a URL", text)
		case u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" &&
			u.Path != "/":
			return clusterv1.APIEndpoint{}, fmt.Errorf("%q: want https://host:port", text)
		}
		if hostport = u.Host; u.Port() == "" {
			hostport = net.JoinHostPort(u.Hostname(), "443")
		}
	}
	return parseAddr(hostport)
}

// WriteHelp writes the help text for the variables.
func WriteHelp(w io.Writer) error {
	for _, v := range Variables() {
		text := v.Text
		if v.Default != "" {
			text += " (default: " + v.Default + ")"
		}
		if _, err := fmt.Fprintf(w, "  %-28s %s\n", v.Name, text); err != nil {
			return err
		}
	}
	return nil
}

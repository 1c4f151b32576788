// Package render renders the templates of a shard configuration: it defines their data and functions.
//
// Templates are Go's text/template with missingkey=error. They come from config authors and, through the operator API,
// from tenants, and they run inside the server. So they are bounded: no sub-templates, loops only over the maps of the
// data, no output over [MaxOutput], no function results over a budget. The same code runs at plan time, with [Sample]
// data, and on the server.
//
// Invariant: a template that compiles refers only to fields of [Data]. Its execution ends, in bounded time and memory.
//
// The package does not know the shard configuration.
package render

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Data is what templates can refer to, as {{ .Instance.ID }} and so on.
type Data struct {
	Instance Instance
	Cluster  Cluster
	Server   Server
	Provider Provider
	// Vars are the group's merged variables. Referring to a missing variable is an error, but {{ index .Vars "name" }}
	// returns "" for it.
	Vars map[string]string
	// Image holds the provider's ID of each image of the config, by name.
	Image map[string]string
	// Claimed is what the instance's agent reports about its machine. Only templates of [CompileFile] can refer to it.
	Claimed Claimed
}

// facts is Data without Claimed.
type facts struct {
	Instance    Instance
	Cluster     Cluster
	Server      Server
	Provider    Provider
	Vars, Image map[string]string
}

// Claimed is what an agent reports about its machine. Root on the machine can make the agent report anything. Values
// that are not known are "".
type Claimed struct{ Hostname, IP4, IP6 string }

// Instance is the VM for which a template is rendered, as the server and the provider know it. Addresses that are not
// known are "".
type Instance struct {
	ID, Kind, Arch, Type, Group, Tenant string
	Hostname, FQDN, IP4, IP6            string
}

// Cluster is the cluster that the instance belongs to.
type Cluster struct {
	ID string
	// CACert is the cluster's CA in PEM, one certificate or more. In files of instances, CACert also includes the
	// workload CA.
	CACert string
	// WorkloadCACert is the CA that signs the certificates in files, in PEM. While one CA replaces another,
	// WorkloadCACert contains both.
	WorkloadCACert string
}

// Server is the shard and the addresses (host:port) at which its leader is reached.
type Server struct {
	Shard, RegistrationAddr, AgentAddr, OperatorAddr string
}

// Provider is where the VM runs.
type Provider struct {
	Kind, Region, Zone string
}

// userdata is Data and the registration nonce, {{ .Nonce }}, which only boot scripts can refer to.
type userdata struct {
	Instance    Instance
	Cluster     Cluster
	Server      Server
	Provider    Provider
	Vars, Image map[string]string
	Nonce       string
}

// Nonce is a registration nonce. Only a boot script's template can print it.
type Nonce string

const redacted = "[nonce]"

// String hides the nonce.
func (Nonce) String() string { return redacted }

// GoString hides the nonce.
func (Nonce) GoString() string { return redacted }

// LogValue hides the nonce.
func (Nonce) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a redacted text. encoding/json uses MarshalText too.
func (Nonce) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Sample returns data for checking templates before there is an instance. Every field is filled, except Vars and Image.
// These two are empty maps, which the caller may fill.
func Sample() Data {
	return Data{
		Instance: Instance{
			ID: "knd06bgm7733st2576nx5jht4ecjw", Kind: "knd", Arch: "arm64", Type: "sample.medium", Group: "sample",
			Tenant:   "default",
			Hostname: "ip-192-0-2-10", FQDN: "ip-192-0-2-10.example.internal", IP4: "192.0.2.10", IP6: "2001:db8::10",
		},
		Cluster: Cluster{
			ID:             "sample",
			CACert:         "-----BEGIN CERTIFICATE-----\nc2FtcGxl\n-----END CERTIFICATE-----\n",
			WorkloadCACert: "-----BEGIN CERTIFICATE-----\nd29ya2xvYWRz\n-----END CERTIFICATE-----\n",
		},
		Server: Server{
			Shard: "sample", RegistrationAddr: "192.0.2.1:8992", AgentAddr: "192.0.2.1:8994",
			OperatorAddr: "192.0.2.1:8993",
		},
		Provider: Provider{Kind: "sample", Region: "sample", Zone: "sample-a"},
		Vars:     map[string]string{},
		Image:    map[string]string{},
		Claimed:  Claimed{Hostname: "node-1", IP4: "192.0.2.10", IP6: "2001:db8::10"},
	}
}

// SampleNonce is used as the nonce when a boot script is checked.
const SampleNonce Nonce = "sample.nonce.jwt"

// Env renders KEY=value lines, sorted by key, from templates of the values. A POSIX shell that reads the file with "."
// and systemd's EnvironmentFile= get exactly the same values. Env returns an error for a value that one of the two
// cannot read. Such values contain a NUL byte, invalid UTF-8, Unicode noncharacters or a byte order mark.
func Env(name string, vars map[string]string, d Data) ([]byte, error) {
	b := newBudget()
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(vars)) {
		if err := ValidateEnvName(key); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		at := name + "." + key
		value, err := textWith(at, vars[key], d, b)
		if err != nil {
			return nil, err
		}
		quoted, err := quoteEnv(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if out.Len()+len(key)+len(quoted) > MaxOutput {
			return nil, fmt.Errorf("%s: the file is longer than %d bytes: %w", name, MaxOutput, ErrTooLarge)
		}
		out.WriteString(key + "=" + quoted + "\n")
	}
	return []byte(out.String()), nil
}

// ValidateEnvName checks the name of an environment variable: a name of POSIX.1, section 3.216, which systemd accepts
// too.
func ValidateEnvName(s string) error {
	switch {
	case s == "" || len(s) > 256:
		return fmt.Errorf("the name of an environment variable has 1 to 256 characters, not %d", len(s))
	case !envName.MatchString(s):
		return fmt.Errorf("%q is not the name of an environment variable", s[:min(len(s), 64)])
	}
	return nil
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// quoteEnv quotes a value for a POSIX shell and for systemd. It uses double quotes, because both programs have the same
// rules inside them: a backslash before ", \, ` or $ makes that character literal, and line breaks are literal. See
// POSIX Shell Command Language, section 2.2.3, and systemd.exec(5), EnvironmentFile=. It does not use single quotes,
// because in systemd they cannot enclose a single quote. A value that needs no quotes gets none, so that simpler
// parsers can read it. A value with ~ needs quotes, because a shell expands ~.
func quoteEnv(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errors.New("the value is not valid UTF-8")
	}
	harmless := s != ""
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == 0:
			return "", errors.New("the value has a NUL character")
		case r == 0xfeff, r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
			return "", fmt.Errorf("the value has the character %U, which systemd refuses", r)
		case strings.ContainsRune("\"\\`$", r):
			out.WriteByte('\\')
		}
		out.WriteRune(r)
		harmless = harmless && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("_./:@%+,-=", r))
	}
	if harmless {
		return s, nil
	}
	out.WriteByte('"')
	return out.String(), nil
}

// maxDepth is how deep a tree of values may be.
const maxDepth = 100

// Tree renders every text inside a JSON-like value: nil, bool, string, numbers, []any and map[string]any. Keys are not
// templates. The result shares no maps or slices with the tree. The limits apply to the output of all texts together.
func Tree(name string, tree any, d Data) (any, error) { return walk(name, tree, 0, d, newBudget()) }

// JSON renders a document whose texts are templates. The result is indented JSON with a newline at the end.
func JSON(name string, tree any, d Data) ([]byte, error) {
	value, err := Tree(name, tree, d)
	if err != nil {
		return nil, err
	}
	out, err := encodeJSON(value, "  ")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(out) > MaxOutput {
		return nil, fmt.Errorf("%s: the document is longer than %d bytes: %w", name, MaxOutput, ErrTooLarge)
	}
	return out, nil
}

// walk renders a tree. An error contains the path of the element that caused it, such as Parent.key[3].
func walk(name string, tree any, depth int, d Data, b *budget) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: nested deeper than %d", name, maxDepth)
	}
	switch v := tree.(type) {
	case string:
		return textWith(name, v, d, b)
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			value, err := walk(name+"."+key, v[key], depth+1, d, b)
			if err != nil {
				return nil, err
			}
			out[key] = value
		}
		return out, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			value, err := walk(name+"["+strconv.Itoa(i)+"]", v[i], depth+1, d, b)
			if err != nil {
				return nil, err
			}
			out[i] = value
		}
		return out, nil
	case nil, bool, float64, int, int64:
		return v, nil
	default:
		return nil, fmt.Errorf("%s: a %T is not a JSON value", name, v)
	}
}

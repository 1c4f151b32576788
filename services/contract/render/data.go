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

import "log/slog"

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

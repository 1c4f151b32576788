// Package settings owns what the operator is told from outside: its configuration file and its environment.
//
// Invariant: nothing of it is believed before it was checked whole. A file that is wrong changes nothing.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

const (
	// maxFile bounds the configuration file, in bytes. Kubernetes allows a ConfigMap of 1 MiB.
	maxFile = 1 << 20
	// maxShards bounds the shards: an NstanceCluster names each as a failure domain, of which Cluster API allows 100.
	maxShards = 100
)

// Config is the configuration file.
type Config struct {
	// Cluster and Tenant say whom the operator works for.
	Cluster, Tenant string
	// Shards are the cluster's shards by their IDs.
	Shards map[string]Endpoints
}

// Endpoints are where a shard's servers are reached, each as host:port.
type Endpoints struct {
	// Registration is where an operator without a certificate gets one.
	Registration string
	// Operator is where one with a certificate is served.
	Operator string
}

// IDs returns the shards' IDs, sorted.
func (c Config) IDs() []string { return slices.Sorted(maps.Keys(c.Shards)) }

// file is the configuration file as it is written.
type file struct {
	Cluster string           `yaml:"cluster_id"`
	Tenant  *string          `yaml:"tenant"`
	Shards  map[string]*ends `yaml:"shards"`
}

type ends struct {
	Registration string `yaml:"registration_addr"`
	Operator     string `yaml:"operator_addr"`
}

// Load reads the configuration file.
func Load(path string) (Config, error) {
	text, err := read(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	config, err := Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

func read(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Parse reads a configuration: one YAML document without unknown or repeated fields. The error names all that is wrong.
func Parse(text []byte) (Config, error) {
	if len(text) > maxFile {
		return Config{}, fmt.Errorf("it has more than %d bytes", maxFile)
	}
	var f file
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&f); {
	case errors.Is(err, io.EOF):
		return Config{}, errors.New("it is empty")
	case err != nil:
		return Config{}, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("it has more than one YAML document")
	}
	return f.check()
}

func (f file) check() (Config, error) {
	config := Config{Cluster: f.Cluster, Tenant: ident.DefaultTenant, Shards: map[string]Endpoints{}}
	var problems []error
	complain := func(field string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
	}
	complain("cluster_id", ident.ValidateClusterName(f.Cluster))
	if f.Tenant != nil {
		config.Tenant = *f.Tenant
	}
	complain("tenant", ident.ValidateTenantName(config.Tenant))
	switch n := len(f.Shards); {
	case n == 0:
		complain("shards", errors.New("there are none"))
	case n > maxShards:
		complain("shards", fmt.Errorf("there are %d, at most %d are allowed", n, maxShards))
	}
	for _, id := range slices.Sorted(maps.Keys(f.Shards)) {
		at := f.Shards[id]
		if at == nil {
			at = new(ends)
		}
		complain("shards", ident.ValidateName(id))
		complain("shards."+id+".registration_addr", validateAddr(at.Registration))
		complain("shards."+id+".operator_addr", validateAddr(at.Operator))
		config.Shards[id] = Endpoints{Registration: at.Registration, Operator: at.Operator}
	}
	if len(problems) > 0 {
		return Config{}, errors.Join(problems...)
	}
	return config, nil
}

// validateAddr accepts host:port with a host that is not empty.
func validateAddr(addr string) error {
	if addr == "" {
		return errors.New("is missing, want host:port")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r == '/' || r == '@' || r > '~'
	}) {
		return fmt.Errorf("%q is not host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q: the port is not a number from 1 to 65535", addr)
	}
	return nil
}

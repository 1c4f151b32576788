// Package settings parses the operator's configuration file and environment variables.
//
// Invariant: a configuration is used only if all of it is valid. An invalid file changes nothing.
package settings

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

const (
	// maxFile is the maximum size of the configuration file in bytes. A ConfigMap has the same limit.
	maxFile = 1 << 20
	// maxShards is the largest number of shards. An NstanceCluster has one failure domain for each shard, and at most
	// 100 failure domains.
	maxShards = 100
)

// Config is the content of the configuration file.
type Config struct {
	// The operator works for this cluster and this tenant.
	Cluster string `yaml:"cluster_id"`
	Tenant  string `yaml:"tenant"`
	// Shards are the cluster's shards by ID.
	Shards map[string]Endpoints `yaml:"shards"`
}

// Endpoints are the addresses of a shard's servers, as host:port.
type Endpoints struct {
	// Registration is the address at which an operator without a certificate registers.
	Registration string `yaml:"registration_addr"`
	// Operator is the address of the operator API, which requires a certificate.
	Operator string `yaml:"operator_addr"`
}

// IDs returns the IDs of the shards, sorted.
func (c Config) IDs() []string { return slices.Sorted(maps.Keys(c.Shards)) }

// Load reads the configuration file.
func Load(path string) (Config, error) {
	text, err := readFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	config, err := Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return config, nil
}

func readFile(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Parse parses a configuration: one YAML document without unknown or repeated fields. The error lists all problems.
func Parse(text []byte) (Config, error) {
	if len(text) > maxFile {
		return Config{}, fmt.Errorf("the file has more than %d bytes", maxFile)
	}
	config := Config{Tenant: ident.DefaultTenant}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&config); {
	case errors.Is(err, io.EOF):
		return Config{}, errors.New("the file is empty")
	case err != nil:
		return Config{}, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("the file has more than one YAML document")
	}
	if err := config.validate(); err != nil {
		return Config{}, err
	}
	return config, nil
}

func (c Config) validate() error {
	var problems []error
	complain := func(field string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", field, err))
		}
	}
	complain("cluster_id", ident.ValidateClusterName(c.Cluster))
	complain("tenant", ident.ValidateTenantName(c.Tenant))
	switch n := len(c.Shards); {
	case n == 0:
		complain("shards", errors.New("want at least one shard"))
	case n > maxShards:
		complain("shards", fmt.Errorf("%d shards, at most %d are allowed", n, maxShards))
	}
	for _, id := range c.IDs() {
		complain("shards", ident.ValidateName(id))
		_, err := parseAddr(c.Shards[id].Registration)
		complain("shards."+id+".registration_addr", err)
		_, err = parseAddr(c.Shards[id].Operator)
		complain("shards."+id+".operator_addr", err)
	}
	return errors.Join(problems...)
}

// parseAddr parses host:port with a host and a port from 1 to 65535.
func parseAddr(addr string) (clusterv1.APIEndpoint, error) {
	if addr == "" {
		return clusterv1.APIEndpoint{}, errors.New("is missing, want host:port")
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || strings.ContainsFunc(host, func(r rune) bool {
		return r <= ' ' || r == '/' || r == '@' || r > '~'
	}) {
		return clusterv1.APIEndpoint{}, fmt.Errorf("%q is not host:port", addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return clusterv1.APIEndpoint{}, fmt.Errorf("%q: the port is not a number from 1 to 65535", addr)
	}
	return clusterv1.APIEndpoint{Host: host, Port: int32(n)}, nil
}

// Interval is the time between two checks of the configuration file. The kubelet updates a mounted ConfigMap only about
// once a minute.
const Interval = 5 * time.Second

// Watch reads the file every [Interval] until ctx ends. It calls the function "use" with each valid configuration that
// differs from the previous one. It ignores a file that is missing or invalid, or that belongs to another cluster or
// tenant. It logs the same problem only once. Each time, it calls report with the problem, or with nil if there is
// none.
func Watch(ctx context.Context, path string, now Config, log *slog.Logger, use func(Config), report func(error)) {
	reported := ""
	for tasks.Sleep(ctx, Interval) == nil {
		next, err := Load(path)
		if err == nil {
			err = now.checkChange(next)
		}
		report(err)
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			log.Error("the configuration file is invalid; the previous content stays in use", "error", err)
		case err == nil:
			reported = ""
			if !reflect.DeepEqual(now, next) {
				now = next
				log.Info("the configuration file changed", "shards", next.IDs())
				use(next)
			}
		}
	}
}

// checkChange returns an error if a running operator cannot switch from c to next.
func (c Config) checkChange(next Config) error {
	if next.Cluster != c.Cluster {
		return fmt.Errorf("cluster_id: cannot change from %q to %q while the operator runs", c.Cluster, next.Cluster)
	}
	if next.Tenant != c.Tenant {
		return errors.New("tenant: cannot change while the operator runs")
	}
	return nil
}

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

	"github.com/nstance-kit/nstance/services/contract/ident"
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
	Cluster, Tenant string
	// Shards are the cluster's shards by ID.
	Shards map[string]Endpoints
}

// Endpoints are the addresses of a shard's servers, as host:port.
type Endpoints struct {
	// Registration is the address at which an operator without a certificate registers.
	Registration string
	// Operator is the address of the operator API, which requires a certificate.
	Operator string
}

// IDs returns the IDs of the shards, sorted.
func (c Config) IDs() []string { return slices.Sorted(maps.Keys(c.Shards)) }

// fileFormat is the YAML form of the configuration file.
type fileFormat struct {
	Cluster string                  `yaml:"cluster_id"`
	Tenant  *string                 `yaml:"tenant"`
	Shards  map[string]*shardFormat `yaml:"shards"`
}

type shardFormat struct {
	Registration string `yaml:"registration_addr"`
	Operator     string `yaml:"operator_addr"`
}

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
	var f fileFormat
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&f); {
	case errors.Is(err, io.EOF):
		return Config{}, errors.New("the file is empty")
	case err != nil:
		return Config{}, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("the file has more than one YAML document")
	}
	return f.validate()
}

func (f fileFormat) validate() (Config, error) {
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
		complain("shards", errors.New("want at least one shard"))
	case n > maxShards:
		complain("shards", fmt.Errorf("%d shards, at most %d are allowed", n, maxShards))
	}
	for _, id := range slices.Sorted(maps.Keys(f.Shards)) {
		at := f.Shards[id]
		if at == nil {
			at = new(shardFormat)
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

// validateAddr returns an error unless addr is host:port with a host and a port from 1 to 65535.
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

// Interval is the time between two checks of the configuration file. The kubelet updates a mounted ConfigMap only about
// once a minute.
const Interval = 5 * time.Second

// Watch reads the file at each tick until ctx ends, or every [Interval] if ticks is nil. It calls the function "use"
// with each valid configuration that differs from the previous one. It ignores a file that is missing or invalid, or
// that belongs to another cluster or tenant. It logs the same problem only once. After each tick, it calls report with
// the problem, or with nil if there is none.
func Watch(ctx context.Context, path string, now Config, ticks <-chan time.Time, log *slog.Logger, use func(Config),
	report func(error)) {
	if ticks == nil {
		ticker := time.NewTicker(Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	reported := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
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

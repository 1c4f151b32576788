package server

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
)

// Validate checks a configuration in a file or in the bucket. It prints all problems, one per line. It returns the exit
// status, which is 0 for a configuration that a server would apply.
func Validate(ctx context.Context, o Options, out, errOut io.Writer) int {
	name, body, err := document(ctx, o)
	if err != nil {
		fmt.Fprintf(errOut, "nstance-server: %v\n", err)
		return 1
	}
	parse := config.Parse
	if o.ValidateFile == "" {
		parse = config.ParseStored
	}
	shard, problems := parse(name, body)
	for _, problem := range problems {
		fmt.Fprintln(errOut, problem)
	}
	if errs := problems.Errors(); len(errs) > 0 {
		fmt.Fprintf(errOut, "%s: %d problems\n", name, len(errs))
		return 1
	}
	groups, _ := shard.WithDefaults().Merged(config.Groups{})
	fmt.Fprintf(out, "%s: valid: shard %s of cluster %s, %d groups\n", name, shard.Server.Shard, shard.Cluster.ID,
		len(groups))
	return 0
}

// document reads the configuration to check.
func document(ctx context.Context, o Options) (name string, body []byte, err error) {
	if o.ValidateFile != "" {
		body, err := os.ReadFile(o.ValidateFile)
		if err != nil {
			return "", nil, fmt.Errorf("--validate: %w", err)
		}
		return o.ValidateFile, body, nil
	}
	store, err := open.Open(ctx, o.Location)
	if err != nil {
		return "", nil, fmt.Errorf("open the bucket: %w", err)
	}
	store = objstore.WithTimeout(store, startupTimeout, minListTimeout)
	body, _, err = clusterstate.New(clusterstate.Options{Cluster: store, Shard: store, ShardID: o.Shard}).ReadConfig(
		ctx, o.Shard)
	return keys.Config(o.Shard), body, err
}

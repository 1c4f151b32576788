package bucket

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/attribute/diagnostic"
)

// CheckHome returns a *[clusterstate.NotHomeError] if no server leads the shard in this bucket, because it is a copy of
// the shard's home. It returns nil if the home cannot be read, or if only its endpoint differs: servers may reach the
// same bucket at another endpoint.
func (c *Connection) CheckHome(ctx context.Context, shard string) error {
	state, err := c.Shard(ctx, "", shard)
	if err != nil {
		return nil //nolint:nilerr // the caller's own access to the bucket reports it
	}
	home, _, err := state.ReadHome(ctx)
	if err != nil {
		return nil //nolint:nilerr // there may be no home yet, or this user may not read it
	}
	at, err := open.Canonical(ctx, *c.settings.Storage)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if here := clusterstate.BucketAt(at); !home.MayBe(here) {
		return &clusterstate.NotHomeError{Shard: shard, Home: home, Here: here}
	}
	return nil
}

// NotHome describes an error of [Connection.CheckHome] to users. If err is not a *[clusterstate.NotHomeError], the
// result is false.
func (c *Connection) NotHome(err error) (failure diagnostic.Failure, ok bool) {
	var other *clusterstate.NotHomeError
	if !errors.As(err, &other) {
		return failure, false
	}
	command := "nstance-admin cluster restore"
	if other.Here.Provider != open.Names()[0] {
		command += " --storage-provider " + other.Here.Provider
	}
	command += " --storage-bucket " + other.Here.Name
	if other.Here.Prefix != "" {
		command += " --storage-prefix " + other.Here.Prefix
	}
	return diagnostic.Failure{
		What: "The bucket is not the home of shard " + other.Shard, Where: c.Place(keys.Home(other.Shard)),
		Why: fmt.Errorf("the home is %s, but this is %s: no server leads here, and nothing that is written here takes "+
			"effect", other.Home, other.Here),
		Do: "To manage the shard, set the provider's storage to its home. To make this bucket the home, first stop " +
			"the servers that use the present home, then run " + command + ".",
	}, true
}

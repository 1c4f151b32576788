package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

func (a *app) verifyCommand(s *secretFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify", Short: "Check every object in the bucket", Args: cobra.NoArgs,
		Long: `Reads every object of the cluster in the bucket and reports problems. It does so in the
buckets of --shard-storage, too. Problems are names
that Nstance does not use, content that does not parse, objects of another cluster, objects
of a shard that has no configuration, and sealed content that the encryption key does not
open.

To prove that the bucket honours conditional writes, "cluster verify" writes one object
and deletes it again. It changes nothing else. It does not look for VMs without a record:
"orphans list" shows those.`,
		Example: `  nstance-admin cluster verify --storage-bucket my-bucket`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		check := func(ctx context.Context, c *cluster) (verification, error) {
			if err := objstore.Probe(ctx, c.bucket, probeKey()); err != nil {
				return verification{}, fmt.Errorf("check the bucket: %w", err)
			}
			result, err := verify(ctx, c, a.Now())
			if err != nil {
				return verification{}, err
			}
			var seen []objstore.Store
			for _, shard := range slices.Sorted(maps.Keys(c.own)) {
				if slices.Contains(seen, c.own[shard]) {
					continue // shards may share a bucket
				}
				seen = append(seen, c.own[shard])
				if err := a.verifyOwn(ctx, c, shard, &result); err != nil {
					return verification{}, fmt.Errorf("bucket of shard %s: %w", shard, err)
				}
			}
			return result, nil
		}
		result, err := inCluster(cmd.Context(), a, s, need{key: true, own: true}, check)
		if err != nil {
			return err
		}
		err = a.show(*f, result, func(w io.Writer) error {
			if len(result.Problems) > 0 {
				rows := rowsOf(result.Problems, func(p objectProblem) []cell { return plain(p.where(), p.Problem) })
				if err := a.table(w, []string{"OBJECT", "PROBLEM"}, rows); err != nil {
					return err
				}
			}
			_, err := fmt.Fprintf(w, "%s, %s\n", count(result.Objects, "object"),
				count(len(result.Problems), "problem"))
			return err
		})
		if n := len(result.Problems); n > 0 && err == nil {
			err = fmt.Errorf("%s in the bucket", count(n, "problem"))
			isSealed := func(p objectProblem) bool {
				return strings.Contains(p.Problem, envelope.ErrUnknownKey.Error())
			}
			if slices.ContainsFunc(result.Problems, isSealed) {
				return withHint(err, "%s", a.hintOf(envelope.ErrUnknownKey))
			}
			err = withHint(err, "restore a damaged object from the bucket's versions or a backup, and move away an "+
				"object that does not belong there")
		}
		return err
	}
	return cmd
}

type verification struct {
	Cluster  string          `json:"cluster_id"`
	Objects  int             `json:"objects"`
	Kinds    map[string]int  `json:"kinds"`
	Problems []objectProblem `json:"problems"`
}

type objectProblem struct {
	Key     string `json:"key"`
	Problem string `json:"problem"`
	// Shard names the shard in whose own bucket the object is.
	Shard string `json:"shard,omitempty"`
}

// where returns the key, and the shard whose bucket has the object.
func (p objectProblem) where() string {
	if p.Shard == "" {
		return p.Key
	}
	return p.Key + " in the bucket of shard " + p.Shard
}

// verifyOwn adds what is in a shard's own bucket to the result.
func (a *app) verifyOwn(ctx context.Context, c *cluster, shard string, result *verification) error {
	own := *c
	own.bucket, own.state, own.isOwn = c.own[shard], c.state.InShard(shard), true
	if err := objstore.Probe(ctx, own.bucket, probeKey()); err != nil {
		return err
	}
	found, err := verify(ctx, &own, a.Now())
	if err != nil {
		return err
	}
	result.Objects += found.Objects
	for kind, n := range found.Kinds {
		result.Kinds[kind] += n
	}
	for _, p := range found.Problems {
		p.Shard = shard
		result.Problems = append(result.Problems, p)
	}
	return nil
}

func verify(ctx context.Context, c *cluster, now time.Time) (verification, error) {
	entries, err := c.bucket.List(ctx, "")
	if err != nil {
		return verification{}, fmt.Errorf("list the bucket: %w", err)
	}
	v := verification{Cluster: c.id, Objects: len(entries), Kinds: map[string]int{}, Problems: []objectProblem{}}
	configured, used := map[string]bool{}, map[string]string{}
	for _, entry := range entries {
		key, err := keys.Parse(entry.Key)
		if err == nil {
			v.Kinds[string(key.Kind)]++
			switch {
			case key.Kind == keys.KindConfig:
				configured[key.Shard] = true
			case key.Shard != "" && used[key.Shard] == "":
				used[key.Shard] = entry.Key
			}
			err = c.verifyObject(ctx, key, entry, now)
		}
		if errors.Is(err, objstore.ErrNotFound) {
			continue // deleted since it was listed
		}
		if ctx.Err() != nil {
			return verification{}, ctx.Err()
		}
		if err != nil {
			v.Problems = append(v.Problems, objectProblem{Key: entry.Key, Problem: err.Error()})
		}
	}
	for _, shard := range slices.Sorted(maps.Keys(used)) {
		if !configured[shard] {
			v.Problems = append(v.Problems, objectProblem{Key: used[shard],
				Problem: fmt.Sprintf("shard %s %s: no server manages this", shard, noConfiguration)})
		}
	}
	for _, required := range c.required() {
		if !slices.ContainsFunc(entries, func(e objstore.Entry) bool { return e.Key == required }) {
			v.Problems = append(v.Problems, objectProblem{Key: required, Problem: "is missing"})
		}
	}
	return v, nil
}

// noConfiguration is the problem of a shard whose configuration is missing.
const noConfiguration = "has no configuration"

// required returns the keys of the objects that every cluster has.
func (c *cluster) required() []string {
	switch {
	case c.isOwn:
		return nil
	case !c.sealed:
		return []string{keys.ClusterCA()}
	}
	return []string{keys.ClusterCA(), keys.ClusterSecret(secretstore.CAKey), keys.ClusterSecret(secretstore.NonceKey)}
}

// probeAge is the age from which the command `cluster verify` reports a leftover probe object.
const probeAge = time.Hour

func (c *cluster) verifyObject(ctx context.Context, key keys.Key, entry objstore.Entry, now time.Time) error {
	switch key.Kind {
	case keys.KindClusterSecret:
		return c.verifySecret(ctx, key)
	case keys.KindFile:
		return nil
	case keys.KindProbe:
		if now.Sub(entry.Modified) > probeAge {
			return errors.New("left over from a server's start; it can be deleted")
		}
		return nil
	}
	object, err := c.bucket.Get(ctx, entry.Key)
	if err != nil {
		return err
	}
	switch key.Kind {
	case keys.KindClusterCA:
		if c.secrets == nil {
			_, err = c.state.UnverifiedCABundle(ctx)
		} else {
			_, err = c.state.CABundle(ctx)
		}
		return err
	case keys.KindClusterOperator, keys.KindApplied, keys.KindRollout:
		if object.Body, err = c.openDocument(ctx, entry.Key, object.Body); err != nil {
			return err
		}
	}
	switch key.Kind {
	case keys.KindClusterOperator:
		rec, err := record.Decode[record.Operator](object.Body)
		return errors.Join(err, same(err, rec.Cluster, c.id, rec.Tenant, key.Tenant, rec.ID.Storage(), key.ID))
	case keys.KindAgentKey:
		rec, err := record.Decode[record.AgentKey](object.Body)
		return errors.Join(err, same(err, rec.Cluster, c.id))
	case keys.KindConfig:
		shard, problems := config.ParseStored(entry.Key, object.Body)
		if shard == nil {
			return problems.Err()
		}
		return same(nil, shard.Cluster.ID, c.id, shard.Server.Shard, key.Shard)
	case keys.KindGroups:
		_, problems := config.ParseGroups(entry.Key, object.Body)
		return problems.Err()
	case keys.KindRollout:
		rec, err := record.Decode[record.Rollout](object.Body)
		return errors.Join(err, same(err, rec.Tenant, key.Tenant, rec.Group, key.Name))
	case keys.KindInstance:
		rec, err := record.Decode[record.Instance](object.Body)
		return errors.Join(err, same(err, rec.Cluster, c.id, rec.Shard, key.Shard, rec.Tenant, key.Tenant,
			rec.ID.Storage(), key.ID))
	case keys.KindCertLog:
		rec, err := record.Decode[record.CertLog](object.Body)
		return errors.Join(err, same(err, rec.Cluster, c.id, rec.Shard, key.Shard, rec.Tenant, key.Tenant,
			rec.Instance.Storage(), key.ID))
	}
	if check := checks[key.Kind]; check != nil {
		return check(object.Body)
	}
	return fmt.Errorf("objects of kind %s are not known", key.Kind)
}

// checks check the records that do not repeat what their keys say.
var checks = map[keys.Kind]func([]byte) error{
	keys.KindLeader:         decodes(record.DecodeLock),
	keys.KindApplied:        decodes(record.DecodeApplied),
	keys.KindHome:           decodes(record.Decode[record.Home]),
	keys.KindServerReport:   decodes(record.Decode[record.ServerReport]),
	keys.KindClusterJournal: decodes(record.Decode[record.ClusterEvent]),
	keys.KindJournal:        decodes(record.DecodeEvents),
}

func decodes[T any](decode func([]byte) (T, error)) func([]byte) error {
	return func(body []byte) error {
		_, err := decode(body)
		return err
	}
}

// openDocument returns the content of a signed document.
func (c *cluster) openDocument(ctx context.Context, key string, body []byte) ([]byte, error) {
	if c.secrets == nil {
		return authority.UnverifiedContent(body)
	}
	return c.state.OpenDocument(ctx, key, body)
}

func (c *cluster) verifySecret(ctx context.Context, key keys.Key) error {
	if c.secrets == nil {
		object, err := c.bucket.Get(ctx, keys.ClusterSecret(key.Name))
		if err == nil {
			_, err = envelope.KeyID(object.Body)
		}
		return err
	}
	name := key.Name
	secret, err := c.secrets.Get(ctx, name)
	if err != nil {
		if errors.Is(err, secretstore.ErrNotFound) {
			return objstore.ErrNotFound
		}
		return err
	}
	return checkOurs(c, name, secret.Value.Reveal())
}

// same compares pairs of texts: the first text is from a record, and the second from the record's key. It returns an
// error if the texts of any pair differ. If the record could not be read (`read` is its error), same compares nothing
// and returns nil.
func same(read error, pairs ...string) error {
	for i := 0; read == nil && i < len(pairs); i += 2 {
		if pairs[i] != pairs[i+1] {
			return fmt.Errorf("the record contradicts its key: it contains %q, want %q", pairs[i], pairs[i+1])
		}
	}
	return nil
}

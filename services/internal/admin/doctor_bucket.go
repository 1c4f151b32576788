package admin

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secrets "github.com/nstance-kit/nstance/services/store/secretstore/open"
)

// nextFor returns what to do about an error of the bucket. If the error has no hint, nextFor returns `otherwise`.
func (a *app) nextFor(err error, otherwise string) string {
	if errors.Is(err, record.ErrNewer) {
		return "use a nstance-admin of the servers' version"
	}
	return cmp.Or(a.hintOf(err), otherwise)
}

// checkBucket checks that this program can read, list and write objects, and compares its clock with the bucket's.
// clock is the present time of the bucket's clock, or zero if it is unknown. reached is false if neither the read nor
// the list succeeds.
func (a *app) checkBucket(ctx context.Context, bucket objstore.Store, shard string) (found []finding, clock time.Time,
	reached bool) {
	_, err := bucket.Get(ctx, keys.Config(shard))
	if errors.Is(err, objstore.ErrNotFound) {
		err = nil
	}
	_, listErr := bucket.List(ctx, keys.Leader(shard))
	if err != nil && listErr != nil {
		next := a.nextFor(err, "check the bucket, the network and the credentials")
		return []finding{{"bucket", false, err.Error(), next}}, time.Time{}, false
	}
	found = append(found, a.checkPermission("read from the bucket", err), a.checkPermission("list the bucket", listErr))
	clock, err = writeProbe(ctx, bucket)
	found = append(found, a.checkPermission("write to the bucket", err))
	if !clock.IsZero() {
		found = append(found, describeClock("clock of this machine", a.Now().Sub(clock)))
	}
	return found, clock, true
}

func (a *app) checkPermission(what string, err error) finding {
	if err != nil {
		return finding{what, false, err.Error(), a.nextFor(err, "give the credentials this permission; if servers use "+
			"others, run doctor with those")}
	}
	return finding{what, true, "works with your credentials (the servers' may differ)", ""}
}

// writeProbe writes and deletes one object, and returns the time of the write by the bucket's clock.
func writeProbe(ctx context.Context, bucket objstore.Store) (modified time.Time, err error) {
	key := probeKey()
	if _, err := bucket.Put(ctx, key, []byte("doctor\n"), objstore.IfAbsent()); err != nil {
		return time.Time{}, err
	}
	if entries, err := bucket.List(ctx, key); err == nil && len(entries) == 1 {
		modified = entries[0].Modified
	}
	return modified, bucket.Delete(ctx, key)
}

// maxClock is the largest difference between clocks that the command `doctor` accepts. Connections fail only if the
// difference exceeds [authority.Skew], so people can act before.
const maxClock = time.Minute

func describeClock(check string, ahead time.Duration) finding {
	ahead = ahead.Round(time.Second)
	if ahead.Abs() > maxClock {
		return finding{check, false, fmt.Sprintf("differs by %s from the bucket's", ahead.Abs()), fmt.Sprintf(
			"set the clock and start time synchronization (chrony); above %s, connections between machines fail",
			authority.Skew)}
	}
	return finding{check, true, "agrees with the bucket's", ""}
}

// checkKey opens the CA's key with the encryption key that the flags select.
func (a *app) checkKey(ctx context.Context, s *secretFlags, bucket objstore.Store, state *clusterstate.State,
	shard *config.Shard) finding {
	const check = "encryption key"
	settings := config.Secrets{Provider: s.provider, Prefix: s.prefix, ProjectID: s.project}
	cluster := s.cluster
	if shard != nil {
		settings, cluster = shard.Cluster.Secrets, cmp.Or(cluster, shard.Cluster.ID)
		settings.Provider = cmp.Or(settings.Provider, config.ObjectStorage)
	}
	if cluster == "" {
		var err error
		if cluster, err = clusterOf(ctx, state); err != nil {
			return finding{check, true, "not checked: the cluster's name is not known", "give --cluster-id to check it"}
		}
	}
	ring, err := s.ring(ctx, settings.Provider == config.ObjectStorage)
	if err != nil {
		return finding{check, true, "not checked: " + err.Error(), "give the key to check it: " + a.hintOf(err)}
	}
	store, err := secrets.Open(ctx, settings, secretstore.Options{Bucket: bucket, Cluster: cluster, Ring: ring,
		Rand: a.Rand})
	if err == nil {
		_, err = store.Get(ctx, secretstore.CAKey)
	}
	switch {
	case errors.Is(err, envelope.ErrUnknownKey):
		return finding{check, false, "it is the wrong key: " + err.Error(), a.hintOf(err)}
	case errors.Is(err, secretstore.ErrNotFound):
		return finding{check, false, err.Error(), "nstance-admin cluster secret set ca.key restores it from a " +
			"backup; a new cluster gets one with nstance-admin cluster init"}
	case err != nil:
		return finding{check, false, err.Error(), a.nextFor(err, "check the secrets store and the credentials")}
	}
	return finding{check, true, "opens the CA's key (your encryption key: the servers may have another)", ""}
}

// soon is the minimum remaining validity of a CA's certificate. If less is left, the command `doctor` reports a
// problem.
const soon = 90 * 24 * time.Hour

func (a *app) checkCA(ctx context.Context, state *clusterstate.State) finding {
	const check = "CA certificate"
	bundle, err := state.UnverifiedCABundle(ctx)
	if err != nil {
		return finding{check, false, err.Error(), a.nextFor(err,
			"nstance-admin cluster init makes the keys of a new cluster; restore cluster/ca.crt of an old one")}
	}
	return a.describeEnd(check, bundle[0], soon, "replace it with nstance-admin cluster rotate-ca")
}

func (a *app) describeEnd(check string, cert *x509.Certificate, before time.Duration, next string) finding {
	left := cert.NotAfter.Sub(a.Now())
	switch {
	case left <= 0:
		return finding{check, false, "it has expired at " + stamp(cert.NotAfter), next}
	case left < before:
		return finding{check, false, "it expires soon, at " + stamp(cert.NotAfter), next}
	}
	return finding{check, true, "it ends at " + stamp(cert.NotAfter), ""}
}

// checkIdentity checks the certificate of nstance-admin itself.
func (a *app) checkIdentity(dir string) finding {
	const check = "your certificate"
	next := "make one with nstance-admin cluster register-operator --output-dir " + dir
	identity, err := operatorclient.LoadIdentity(dir)
	if err != nil {
		return finding{check, false, err.Error(), next}
	}
	return a.describeEnd(check, identity.Leaf, 0, next)
}

// describeSpeed compares how long one read of the lock took with the longest time that a renewal of the lock may take.
// With slower renewals, the leader loses its authority.
func describeSpeed(lock record.Lock, took time.Duration) finding {
	const check = "speed of the bucket"
	limit := (lock.Lease()*19/20 - lock.Renew()).Round(100 * time.Millisecond)
	if took = took.Round(time.Millisecond); took > limit/2 {
		return finding{check, false,
			fmt.Sprintf("a read took %s from here; the leadership ends if a renewal of the lock "+
				"takes longer than %s", took, limit), "look at the network to the bucket and at the store, or raise " +
				"lease_duration"}
	}
	return finding{check, true, fmt.Sprintf("a read took %s from here; the leader needs answers within %s", took,
		limit),
		""}
}

package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nstance-kit/nstance/services/contract/objstore"
	"github.com/nstance-kit/nstance/services/contract/record"
)

// awaitRecords waits until every instance has its record, and writes into each what an agent's registration would: one
// that ends before it is no loss like another, its group waits before it makes the next.
func (t *trial) awaitRecords(ctx context.Context) error {
	began := time.Now()
	for {
		ids, err := t.stack.LiveRecords(ctx)
		if err == nil && len(ids) == t.records {
			fmt.Printf("%d instances made in %v by the first leader\n", t.records,
				time.Since(began).Round(100*time.Millisecond))
			return t.register(ctx)
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d records of %d: %w", len(ids), t.records, err)
		}
	}
}

func (t *trial) register(ctx context.Context) error {
	state, err := t.stack.State(ctx)
	if err != nil {
		return err
	}
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	for done := 0; done < t.records; { // some may still be written by the leader
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d instances of %d registered: %w", done, t.records, err)
		}
		writes, inner := errgroup.WithContext(ctx)
		writes.SetLimit(16)
		done, t.cloud.vms = 0, nil
		err := state.LoadInstances(ctx, func(rec record.Instance, token objstore.Token) {
			switch rec.State {
			case record.Registered:
				done++
				t.cloud.vms = append(t.cloud.vms, rec.ProviderID)
			case record.Created:
				writes.Go(func() error {
					next, err := rec.Next(record.Registered, rec.Term, rec.Writer)
					if err != nil {
						return err
					}
					next.RegisteredAt, next.PublicKey, next.NonceID = time.Now(), public, "failover-"+rec.ID.String()
					next.Certificate = &record.CertificateRef{Serial: "0123456789abcdef0123456789abcdef",
						NotAfter: time.Now().Add(24 * time.Hour)}
					_, err = state.PutInstance(inner, next, token)
					return err
				})
			}
		})
		if werr := writes.Wait(); werr != nil {
			return werr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

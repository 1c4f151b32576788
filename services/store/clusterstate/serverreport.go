package clusterstate

import (
	"context"
	"errors"
	"fmt"

	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
)

// ReadServerReport reads the report that was last written about a new server of the shard. It returns
// objstore.ErrNotFound if there is none.
func (s *State) ReadServerReport(ctx context.Context) (record.ServerReport, objstore.Token, error) {
	object, err := s.options.Shard.Get(ctx, keys.ServerReport(s.options.ShardID))
	if err != nil {
		return record.ServerReport{}, "", fmt.Errorf("read server report: %w", err)
	}
	report, err := record.DecodeServerReport(object.Body)
	if err != nil {
		return record.ServerReport{}, "", fmt.Errorf("read server report: %w", err)
	}
	return report, object.Token, nil
}

// WriteServerReport replaces the report about a new server of the shard. The last writer wins.
func (s *State) WriteServerReport(ctx context.Context, report record.ServerReport) error {
	if err := s.checkShard(); err != nil {
		return fmt.Errorf("write server report: %w", err)
	}
	body, err := report.Encode()
	if err != nil {
		return fmt.Errorf("write server report: %w", err)
	}
	for conflicts := (objstore.Conflicts{}); ; {
		object, err := s.options.Shard.Get(ctx, keys.ServerReport(s.options.ShardID))
		if err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return fmt.Errorf("write server report: %w", err)
		}
		_, err = s.put(ctx, s.options.Shard, keys.ServerReport(s.options.ShardID), body, object.Token)
		if conflicts.Again(ctx, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write server report: %w", err)
		}
		return nil
	}
}

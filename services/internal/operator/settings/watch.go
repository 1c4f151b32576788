package settings

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"
)

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

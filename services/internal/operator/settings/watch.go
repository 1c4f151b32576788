package settings

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"
)

// Interval is how often the configuration file is looked at. A mounted ConfigMap follows its object within about a
// minute anyway.
const Interval = 5 * time.Second

// Watch reads the file again and again until ctx ends, and calls use with every valid content that differs from the one
// before. A file that is invalid, is missing, or is of another cluster or tenant is logged once and changes nothing.
// ticks says when to look; nil is every [Interval].
func Watch(ctx context.Context, path string, now Config, ticks <-chan time.Time, log *slog.Logger, use func(Config)) {
	if ticks == nil {
		ticker := time.NewTicker(Interval)
		defer ticker.Stop()
		ticks = ticker.C
	}
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		}
		next, err := Load(path)
		if err == nil {
			err = now.becomes(next)
		}
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			log.Error("The configuration file is refused; what it said before stays in force", "error", err)
		case err == nil:
			said = ""
			if !reflect.DeepEqual(now, next) {
				now = next
				log.Info("The configuration file has changed", "shards", next.IDs())
				use(next)
			}
		}
	}
}

// becomes says why a running operator cannot take over another configuration.
func (c Config) becomes(next Config) error {
	if next.Cluster != c.Cluster {
		return fmt.Errorf("cluster_id: %q cannot become %q while the operator runs", c.Cluster, next.Cluster)
	}
	if next.Tenant != c.Tenant {
		return errors.New("tenant: it cannot be changed while the operator runs")
	}
	return nil
}

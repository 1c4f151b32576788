package notice

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// gcp is the cloud of Compute Engine. The environment variable is that of the client libraries.
var gcp = Cloud{
	Name: "gcp",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Google" || strings.HasPrefix(f.Value("product_name"), "Google Compute Engine")
	},
	NewSource: func(o Options) Source {
		if host := os.Getenv("GCE_METADATA_HOST"); host != "" {
			o.Base = "http://" + host
		}
		return NewGCP(o)
	},
}

// GCP watches for the preemption of a spot VM. Its requests hang until the answer changes.
// https://cloud.google.com/compute/docs/instances/create-use-preemptible#detecting_if_an_instance_was_preempted
type GCP struct {
	options Options
	now     func() time.Time
}

const (
	preemptedPath = "/computeMetadata/v1/instance/preempted"
	// hanging is the time for which the service is asked to wait for a change.
	hanging = 60 * time.Second
	// grace is the maximum time for which Compute Engine lets a preempted VM run.
	grace = 30 * time.Second
)

// NewGCP returns a watcher for GCP.
func NewGCP(o Options) *GCP {
	return &GCP{o.withDefaults("http://metadata.google.internal", hanging+10*time.Second), time.Now}
}

// Watch waits for changes and calls notice for each change. It returns when ctx ends. Watch must not run concurrently
// with itself.
func (g *GCP) Watch(ctx context.Context, notice func(*nstancev1.TerminationNotice)) error {
	w := &watcher{Options: g.options, announce: notice}
	etag := ""
	var standing *nstancev1.TerminationNotice
	for {
		preempted, next, err := g.readPreempted(ctx, etag)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil:
			next = ""
		case !preempted:
			standing = nil
		case standing == nil: // the grace period starts when the preemption is first seen
			standing = &nstancev1.TerminationNotice{Kind: "preemption", Deadline: timestamppb.New(g.now().Add(grace))}
		}
		w.saw(standing, err)
		// Without an ETag, a request cannot wait for a change, and the service would answer immediately.
		if etag = next; etag == "" {
			if err := pause(ctx, g.options.Interval); err != nil {
				return err
			}
		}
	}
}

// readPreempted returns the current value. If etag is not empty, it waits for a newer value, for at most hanging.
func (g *GCP) readPreempted(ctx context.Context, etag string) (preempted bool, next string, err error) {
	path := preemptedPath
	if etag != "" {
		path += "?" + url.Values{"wait_for_change": {"true"}, "last_etag": {etag},
			"timeout_sec": {fmt.Sprint(int(hanging / time.Second))}}.Encode()
	}
	body, header, err := g.options.ask(ctx, http.MethodGet, path, http.Header{"Metadata-Flavor": {"Google"}})
	switch {
	case err != nil:
		return false, "", err
	case header.Get("Metadata-Flavor") != "Google":
		return false, "", errors.New("the answer is not from Google's metadata service")
	}
	switch text := strings.TrimSpace(string(body)); text {
	case "TRUE":
		return true, header.Get("ETag"), nil
	case "FALSE":
		return false, header.Get("ETag"), nil
	}
	return false, "", errors.New("instance/preempted is neither TRUE nor FALSE")
}

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

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// gcp is Compute Engine.
var gcp = Cloud{
	Name: "gcp",
	Detect: func(f Firmware) bool {
		return f.Value("sys_vendor") == "Google" || strings.HasPrefix(f.Value("product_name"), "Google Compute Engine")
	},
	NewSource: func(o Options) Source {
		return NewGCP(o.atGoogle())
	},
	Attest: func(ctx context.Context, o Options, instance string) ([]byte, error) {
		return NewGCP(o.atGoogle()).get(ctx, identityTokenPath+"?"+
			url.Values{"audience": {contract.Audience(instance)}, "format": {"full"}}.Encode())
	},
}

// atGoogle returns the options with the URL of the metadata service. GCE_METADATA_HOST overrides the host in that URL,
// as in Google's client libraries.
func (o Options) atGoogle() Options {
	if host := os.Getenv("GCE_METADATA_HOST"); host != "" {
		o.Base = "http://" + host
	}
	return o
}

// GCP watches for the preemption of a spot VM. It asks the metadata service to answer only when the value "preempted"
// has changed.
// https://cloud.google.com/compute/docs/instances/create-use-preemptible#detecting_if_an_instance_was_preempted
type GCP struct {
	options Options
	now     func() time.Time
}

const (
	preemptedPath = "/computeMetadata/v1/instance/preempted"
	// identityTokenPath does not exist on a VM without a service account.
	// https://cloud.google.com/compute/docs/instances/verifying-instance-identity
	identityTokenPath = "/computeMetadata/v1/instance/service-accounts/default/identity"
	// hanging is the longest time for which one request to the metadata service waits for a change.
	hanging = 60 * time.Second
	// grace is the maximum time for which Compute Engine lets a preempted VM run.
	grace = 30 * time.Second
)

// NewGCP returns a watcher for GCP.
func NewGCP(o Options) *GCP {
	return &GCP{o.withDefaults("http://metadata.google.internal", hanging+10*time.Second), time.Now}
}

// Watch calls the function `notice` whenever the termination notice changes. It returns when ctx ends. Watch must not
// run concurrently with itself.
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
			standing = &nstancev1.TerminationNotice{Kind: "preemption", Deadline: timestamppb.New(g.now().Add(grace)),
				Remaining: durationpb.New(grace)}
		}
		w.saw(standing, err)
		// Without an ETag, the metadata service would answer the next request immediately instead of waiting for a
		// change.
		if etag = next; etag == "" {
			if err := tasks.Sleep(ctx, g.options.Interval); err != nil {
				return err
			}
		}
	}
}

// readPreempted returns the value at preemptedPath and its ETag. If etag is not empty, the service answers only when
// the value has another ETag, or after the time `hanging`.
func (g *GCP) readPreempted(ctx context.Context, etag string) (preempted bool, next string, err error) {
	path := preemptedPath
	if etag != "" {
		path += "?" + url.Values{"wait_for_change": {"true"}, "last_etag": {etag},
			"timeout_sec": {fmt.Sprint(int(hanging / time.Second))}}.Encode()
	}
	body, header, err := g.read(ctx, path)
	if err != nil {
		return false, "", err
	}
	switch text := strings.TrimSpace(string(body)); text {
	case "TRUE":
		return true, header.Get("ETag"), nil
	case "FALSE":
		return false, header.Get("ETag"), nil
	}
	return false, "", errors.New("instance/preempted is neither TRUE nor FALSE")
}

// get reads one path.
func (g *GCP) get(ctx context.Context, path string) ([]byte, error) {
	body, _, err := g.read(ctx, path)
	return body, err
}

// read returns the body and the header of the answer for one path. It refuses answers that are not from Google's
// metadata service.
func (g *GCP) read(ctx context.Context, path string) (body []byte, header http.Header, err error) {
	body, header, err = g.options.ask(ctx, http.MethodGet, path, http.Header{"Metadata-Flavor": {"Google"}})
	if err == nil && header.Get("Metadata-Flavor") != "Google" {
		err = errors.New("the answer is not from Google's metadata service")
	}
	return body, header, err
}

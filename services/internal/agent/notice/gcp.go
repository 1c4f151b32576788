package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/ident"
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
	Member: func(ctx context.Context, o Options, batch ident.Batch) (ident.ID, error) {
		name, err := NewGCP(o.atGoogle()).get(ctx, namePath)
		if err != nil {
			return ident.ID{}, err
		}
		id, err := ident.ParseID(string(name))
		if err != nil || !batch.Has(id) {
			return ident.ID{}, fmt.Errorf("the VM's name is %.100q", name)
		}
		return id, nil
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

// GCP watches for the preemption of a spot VM and for maintenance of the VM's host.
// https://cloud.google.com/compute/docs/instances/create-use-preemptible#detecting_if_an_instance_was_preempted
// https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
// https://cloud.google.com/compute/docs/instances/monitor-plan-host-maintenance-event
type GCP struct {
	options Options
	now     func() time.Time
	// event and upcoming are the maintenance at eventPath and at upcomingPath; nil: unknown. Compute Engine announces
	// one maintenance at both paths, at upcomingPath days earlier.
	event, upcoming *nstancev1.Maintenance
}

const (
	preemptedPath = "/computeMetadata/v1/instance/preempted"
	eventPath     = "/computeMetadata/v1/instance/maintenance-event"
	upcomingPath  = "/computeMetadata/v1/instance/upcoming-maintenance?alt=json"
	policyPath    = "/computeMetadata/v1/instance/scheduling/on-host-maintenance"
	// namePath is the path of the VM's name, which is the instance's ID.
	namePath = "/computeMetadata/v1/instance/name"
	// identityTokenPath does not exist on a VM without a service account.
	// https://cloud.google.com/compute/docs/instances/verifying-instance-identity
	identityTokenPath = "/computeMetadata/v1/instance/service-accounts/default/identity"
	// hanging is the longest time for which one request to the metadata service waits for a change.
	hanging = 60 * time.Second
	// grace is the maximum time for which Compute Engine lets a preempted VM run.
	grace = 30 * time.Second
	// seldom is the pause between two requests for upcoming maintenance, in intervals.
	seldom = 30

	hostMaintenance = "host-maintenance" // the kind of all maintenance of Compute Engine
)

// NewGCP returns a watcher for GCP.
func NewGCP(o Options) *GCP {
	return &GCP{options: o.withDefaults("http://metadata.google.internal", hanging+10*time.Second), now: time.Now}
}

// Watch calls the function `notice` whenever a notice changes. It returns when ctx ends. Watch must not run
// concurrently with itself.
func (g *GCP) Watch(ctx context.Context, notice func(Notices)) error {
	w := newWatcher(g.options, notice)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.follow(ctx, w, preemptedPath, g.preempted) })
	group.Go(func() error { return g.follow(ctx, w, eventPath, g.hostEvent) })
	group.Go(func() error { return g.pollUpcoming(ctx, w) })
	return group.Wait()
}

// follow reads one value again and again, and passes it to the function take, which returns how it changes the notices.
// Apart from the first, each request waits in the metadata service until the value changes.
func (g *GCP) follow(ctx context.Context, w *watcher, path string, take func(string) (func(*Notices), error)) error {
	for etag := ""; ; {
		text, next, err := g.readChange(ctx, path, etag)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var change func(*Notices)
		if err == nil {
			change, err = take(text)
		}
		if err != nil {
			next = ""
		}
		w.saw(path, err, change)
		// Without an ETag, the metadata service would answer the next request immediately instead of waiting for a
		// change.
		if etag = next; etag == "" {
			if err := tasks.Sleep(ctx, g.options.Interval); err != nil {
				return err
			}
		}
	}
}

// readChange returns the value at a path and its ETag. If etag is not empty, the service answers only when the value
// has another ETag, or after the time `hanging`.
func (g *GCP) readChange(ctx context.Context, path, etag string) (text, next string, err error) {
	if etag != "" {
		path += "?" + url.Values{"wait_for_change": {"true"}, "last_etag": {etag},
			"timeout_sec": {fmt.Sprint(int(hanging / time.Second))}}.Encode()
	}
	body, header, err := g.read(ctx, path)
	return strings.TrimSpace(string(body)), header.Get("ETag"), err
}

// preempted takes the value at preemptedPath. The grace period starts when the preemption is first seen.
func (g *GCP) preempted(text string) (func(*Notices), error) {
	switch text {
	case "TRUE":
		return func(n *Notices) {
			if n.Termination == nil {
				n.Termination = &nstancev1.TerminationNotice{Kind: "preemption",
					Deadline: timestamppb.New(g.now().Add(grace)), Remaining: durationpb.New(grace)}
			}
		}, nil
	case "FALSE":
		return func(n *Notices) { n.Termination = nil }, nil
	}
	return nil, errors.New("instance/preempted is neither TRUE nor FALSE")
}

// hostEvent takes the value at eventPath. A live migration (MIGRATE_ON_HOST_MAINTENANCE) lets the VM run.
func (g *GCP) hostEvent(text string) (func(*Notices), error) {
	found := &nstancev1.Maintenance{}
	switch text {
	case "TERMINATE_ON_HOST_MAINTENANCE":
		found = maintenance(hostMaintenance, nil)
	case "NONE", "MIGRATE_ON_HOST_MAINTENANCE":
	default:
		return nil, fmt.Errorf("instance/maintenance-event is %q", text[:min(len(text), maxKind)])
	}
	return func(n *Notices) {
		g.event = found
		g.setMaintenance(n)
	}, nil
}

// setMaintenance sets the maintenance that begins first: an event without a time comes before upcoming maintenance.
func (g *GCP) setMaintenance(n *Notices) {
	n.Maintenance = g.event
	if g.event.GetKind() == "" && g.upcoming != nil {
		n.Maintenance = g.upcoming
	}
}

// pollUpcoming reads the upcoming maintenance again and again. Only some VMs have the value.
func (g *GCP) pollUpcoming(ctx context.Context, w *watcher) error {
	for {
		found, err := g.readUpcoming(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.saw(upcomingPath, err, func(n *Notices) {
			g.upcoming = found
			g.setMaintenance(n)
		})
		if err := tasks.Sleep(ctx, seldom*g.options.Interval); err != nil {
			return err
		}
	}
}

// readUpcoming returns the upcoming maintenance that terminates the VM. If the VM's policy is MIGRATE, the VM runs on.
func (g *GCP) readUpcoming(ctx context.Context) (*nstancev1.Maintenance, error) {
	body, err := g.get(ctx, upcomingPath)
	switch {
	case errors.Is(err, errNone):
		return &nstancev1.Maintenance{}, nil
	case errors.Is(err, statusError(http.StatusServiceUnavailable)) && g.upcoming.GetKind() == "":
		return &nstancev1.Maintenance{}, nil // a VM that has not received any notification yet
	case err != nil:
		return nil, err
	}
	found, err := parseUpcoming(body)
	if err != nil || found.GetKind() == "" {
		return found, err
	}
	policy, err := g.get(ctx, policyPath)
	if err == nil && strings.TrimSpace(string(policy)) == "MIGRATE" {
		found = &nstancev1.Maintenance{}
	}
	return found, err
}

// parseUpcoming parses upcoming maintenance, such as
//
//	{"can_reschedule": "true", "latest_window_start_time": "2025-09-10T09:28:16+00:00",
//	 "maintenance_status": "PENDING", "type": "SCHEDULED", "window_end_time": "2025-09-10T13:28:15+00:00",
//	 "window_start_time": "2025-09-10T09:28:15+00:00"}
//
// If there is none, the value is NONE or an object without a window.
func parseUpcoming(body []byte) (*nstancev1.Maintenance, error) {
	if text := strings.Trim(strings.TrimSpace(string(body)), `"`); text == "NONE" {
		return &nstancev1.Maintenance{}, nil
	}
	var doc struct {
		Begins *time.Time `json:"window_start_time"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("instance/upcoming-maintenance: %w", err)
	}
	if doc.Begins == nil {
		return &nstancev1.Maintenance{}, nil
	}
	return maintenance(hostMaintenance, timestamppb.New(*doc.Begins)), nil
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

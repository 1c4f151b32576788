package notice

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/daemon/tasks"
)

// aws describes EC2 instances. An environment variable of the AWS SDK can replace the URL of the metadata service.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
var aws = Cloud{
	Name:   "aws",
	Detect: func(f Firmware) bool { return f.Value("sys_vendor") == "Amazon EC2" },
	NewSource: func(o Options) Source {
		return NewAWS(o.atAmazon())
	},
	Attest: func(ctx context.Context, o Options, _ string) ([]byte, error) {
		document, _, err := NewAWS(o.atAmazon()).get(ctx, identityPath)
		return document, err
	},
	Member: func(ctx context.Context, o Options, batch ident.Batch) (ident.ID, error) {
		text, _, err := NewAWS(o.atAmazon()).get(ctx, launchIndexPath)
		if err != nil {
			return ident.ID{}, err
		}
		index, err := strconv.Atoi(string(text))
		id, ok := batch.Member(index)
		if err != nil || !ok {
			return ident.ID{}, fmt.Errorf("the launch index is %.100q", text)
		}
		return id, nil
	},
}

// atAmazon returns the options with the URL of the metadata service.
func (o Options) atAmazon() Options {
	o.Base = strings.TrimSuffix(os.Getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT"), "/")
	return o
}

// AWS watches for a spot instance's interruption notice and rebalance recommendation, and for scheduled events, through
// IMDSv2.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html
type AWS struct {
	options Options
	token   string
	now     func() time.Time
	// end is the time of the last interruption on AWS's clock, and deadline is the same on this machine's clock. At
	// first, it was as far away as remaining.
	end, deadline time.Time
	remaining     time.Duration
}

// NewAWS returns a watcher for AWS.
func NewAWS(o Options) *AWS {
	return &AWS{options: o.withDefaults("http://169.254.169.254", 5*time.Second), now: time.Now}
}

const (
	tokenPath     = "/latest/api/token"
	actionPath    = "/latest/meta-data/spot/instance-action"
	rebalancePath = "/latest/meta-data/events/recommendations/rebalance"
	scheduledPath = "/latest/meta-data/events/maintenance/scheduled"
	// identityPath is the path of the signed instance identity document, PKCS #7 in base64.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/verify-rsa2048.html
	identityPath = "/latest/dynamic/instance-identity/rsa2048"
	// launchIndexPath is the path of the number that the instance has among those that one call launched.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/AMI-launch-index-examples.html
	launchIndexPath = "/latest/meta-data/ami-launch-index"
	// tokenLife is the longest lifetime that IMDSv2 grants. A token that IMDSv2 refuses is replaced sooner.
	tokenLife = 6 * time.Hour
)

// Watch polls the metadata service, and pauses for Options.Interval after each answer. It calls the function `notice`
// whenever a notice changes. It returns when ctx ends. Watch must not run concurrently with itself.
func (a *AWS) Watch(ctx context.Context, notice func(Notices)) error {
	w := newWatcher(a.options, notice)
	for {
		termination, err := a.readAction(ctx)
		if ctx.Err() == nil {
			w.saw(actionPath, err, func(n *Notices) { n.Termination = termination })
		}
		recommendation, err := a.readRecommendation(ctx)
		if ctx.Err() == nil {
			w.saw(rebalancePath, err, func(n *Notices) { n.Recommendation = recommendation })
		}
		scheduled, err := a.readScheduled(ctx)
		if ctx.Err() == nil {
			w.saw(scheduledPath, err, func(n *Notices) { n.Maintenance = scheduled })
		}
		if err := tasks.Sleep(ctx, a.options.Interval); err != nil {
			return err
		}
	}
}

// readAction returns the current interruption notice, or nil.
func (a *AWS) readAction(ctx context.Context) (*nstancev1.TerminationNotice, error) {
	body, header, err := a.get(ctx, actionPath)
	if errors.Is(err, errNone) {
		return nil, nil //nolint:nilnil // no notice, no error
	}
	if err != nil {
		return nil, err
	}
	notice, err := parseAction(body)
	return a.countHere(notice, header.Get("Date")), err
}

// readRecommendation reports whether there is a rebalance recommendation. AWS never withdraws one.
func (a *AWS) readRecommendation(ctx context.Context) (*nstancev1.Recommendation, error) {
	_, _, err := a.get(ctx, rebalancePath)
	if err != nil && !errors.Is(err, errNone) {
		return nil, err
	}
	return &nstancev1.Recommendation{Replace: err == nil}, nil
}

// readScheduled returns the scheduled event that begins first.
func (a *AWS) readScheduled(ctx context.Context) (*nstancev1.Maintenance, error) {
	body, _, err := a.get(ctx, scheduledPath)
	if errors.Is(err, errNone) {
		return &nstancev1.Maintenance{}, nil
	}
	if err != nil {
		return nil, err
	}
	return parseScheduled(body)
}

// countHere changes the deadline of a notice to this machine's clock. date is the header of the answer, on AWS's
// clock. Every answer repeats the notice, and its deadline is counted once, so that it does not move. A notice without
// deadline or without date stays as it is.
func (a *AWS) countHere(notice *nstancev1.TerminationNotice, date string) *nstancev1.TerminationNotice {
	answered, err := http.ParseTime(date)
	if notice.GetDeadline() == nil || err != nil {
		return notice
	}
	if end := notice.GetDeadline().AsTime(); !end.Equal(a.end) {
		a.end, a.remaining = end, max(0, end.Sub(answered))
		a.deadline = a.now().Add(a.remaining)
	}
	notice.Deadline, notice.Remaining = timestamppb.New(a.deadline), durationpb.New(a.remaining)
	return notice
}

// get reads one path with a token. It requests a new token if there is none or if the service refuses the token.
func (a *AWS) get(ctx context.Context, path string) ([]byte, http.Header, error) {
	for fresh := false; ; fresh = true {
		if a.token == "" || fresh {
			seconds := strconv.Itoa(int(tokenLife / time.Second))
			token, _, err := a.options.ask(ctx, http.MethodPut, tokenPath,
				http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {seconds}})
			if err != nil {
				return nil, nil, fmt.Errorf("get a token: %w", err)
			}
			if a.token = strings.TrimSpace(string(token)); !sendable(a.token) {
				a.token = ""
				return nil, nil, errors.New("get a token: the answer is not a token")
			}
		}
		body, header, err := a.options.ask(ctx, http.MethodGet, path,
			http.Header{"X-Aws-Ec2-Metadata-Token": {a.token}})
		if errors.Is(err, statusError(http.StatusUnauthorized)) && !fresh {
			continue
		}
		return body, header, err
	}
}

// sendable reports whether a token can be sent in a header. The watcher replaces a token only when the service refuses
// it. So a token that cannot be sent would never be replaced.
func sendable(token string) bool {
	return token != "" && !strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' })
}

// parseAction parses {"action": "terminate", "time": "2017-09-18T08:22:00Z"}. It ignores unknown fields.
func parseAction(body []byte) (*nstancev1.TerminationNotice, error) {
	var doc struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, fmt.Errorf("spot/instance-action: %w", err)
	}
	notice := &nstancev1.TerminationNotice{Kind: "spot"}
	switch doc.Action {
	case "terminate", "stop", "hibernate":
		notice.Kind = "spot-" + doc.Action
	}
	if !doc.Time.IsZero() {
		notice.Deadline = timestamppb.New(doc.Time)
		if err := notice.GetDeadline().CheckValid(); err != nil {
			return nil, fmt.Errorf("spot/instance-action: time: %w", err)
		}
	}
	return notice, nil
}

// parseScheduled parses a list of scheduled events, such as
//
//	[{"NotBefore": "21 Jan 2019 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
//	  "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2019 09:17:23 GMT", "State": "active"}]
//
// It returns the active event that begins first. EC2 keeps completed and canceled events in the list for a while.
func parseScheduled(body []byte) (*nstancev1.Maintenance, error) {
	var events []struct{ NotBefore, Code, Description, State string }
	if err := json.Unmarshal(body, &events); err != nil {
		return nil, fmt.Errorf("events/maintenance/scheduled: %w", err)
	}
	first, found := time.Time{}, &nstancev1.Maintenance{}
	for _, e := range events {
		if e.State != "active" || strings.HasPrefix(e.Description, "[Completed]") ||
			strings.HasPrefix(e.Description, "[Canceled]") {
			continue
		}
		begins, err := time.Parse("2 Jan 2006 15:04:05 MST", e.NotBefore)
		if err != nil {
			return nil, fmt.Errorf("events/maintenance/scheduled: NotBefore: %w", err)
		}
		if found.GetKind() == "" || begins.Before(first) {
			first, found = begins, maintenance(cmp.Or(e.Code, "scheduled event"), timestamppb.New(begins))
		}
	}
	return found, nil
}

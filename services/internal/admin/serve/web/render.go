package web

import (
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
)

// parseTemplates returns a map from the name of each page to its template. It panics if a template has a mistake.
func parseTemplates(p *page) map[string]*template.Template {
	functions := template.FuncMap{
		"asset":    func(name string) string { return Path + "assets/" + p.assets + "/" + name },
		"instant":  instant,
		"stamp":    func(t any) string { return stamp(instant(t)) },
		"ago":      func(t any) string { return ago(instant(t), p.Now()) },
		"short":    short,
		"person":   person,
		"lease":    lease,
		"runbook":  runbook,
		"size":     binarySize,
		"percent":  func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
		"number":   fleet.NumberText,
		"took":     took,
		"spaced":   spaced,
		"kind":     func(kind string) string { return spaced(strings.TrimPrefix(kind, "instance_")) },
		"tone":     tone,
		"shard":    shardPath,
		"group":    groupPath,
		"instance": instancePath,
		"events":   eventsPath,
		"settings": config.ReadSettings,
		"scaling":  func(s *nstancev1.GroupScaling) string { return fleet.ScalingText(s, p.Now()) },
		"override": func(g *nstancev1.GroupStatus) []setting { return overrideOf(g, p.Now()) },
		"check": func(c *nstancev1.HealthCheckState) string {
			return strings.ToLower(strings.TrimPrefix(c.GetStatus().String(), "STATUS_"))
		},
	}
	common := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/layout.html",
		"templates/parts.html", "templates/plots.html"))
	pages := map[string]*template.Template{}
	names, _ := fs.Glob(files, "templates/*.html") // fails only for a wrong pattern
	for _, name := range names {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page != "layout" && page != "parts" && page != "plots" {
			pages[page] = template.Must(template.Must(common.Clone()).ParseFS(files, name))
		}
	}
	return pages
}

func shardPath(shard string) string { return Path + "shards/" + url.PathEscape(shard) }

func groupPath(shard, group string) string {
	return shardPath(shard) + "/groups/" + url.PathEscape(group)
}

func instancePath(shard, id string) string {
	return shardPath(shard) + "/instances/" + url.PathEscape(id)
}

// eventsPath returns the address of the page that lists the events of an instance in a group of a shard. An empty
// argument selects the events of all shards, groups or instances.
func eventsPath(shard, group, id string) string {
	return Path + "events?" + eventFilter{Shard: shard, Group: group, Instance: id}.query().Encode()
}

// instant returns the time in a value of a template: a time.Time, or a time of a message.
func instant(value any) time.Time {
	if t, ok := value.(*timestamppb.Timestamp); ok {
		return fleet.Time(t)
	}
	return value.(time.Time)
}

// stamp formats a time in UTC. It returns "" for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// took formats a duration with two units at most, such as "0.83 s" or "1 min 30 s". It returns "" for a negative one.
func took(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Round(time.Microsecond).Microseconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'g', 2, 64) + " s"
	}
	d = d.Round(time.Second)
	for _, u := range []struct {
		of, part        time.Duration
		unit, smallUnit string
	}{{day, time.Hour, "d", "h"}, {time.Hour, time.Minute, "h", "min"}, {time.Minute, time.Second, "min", "s"}} {
		rounded := d.Round(u.part)
		if rounded < u.of {
			continue
		}
		text := fmt.Sprintf("%d %s", rounded/u.of, u.unit)
		if rest := rounded % u.of / u.part; rest > 0 {
			text += fmt.Sprintf(" %d %s", rest, u.smallUnit)
		}
		return text
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// ago says how long before or after now a time is, in its largest unit. assets/live.js does the same in an open page.
func ago(t, now time.Time) string {
	d := now.Sub(t)
	text := ""
	for _, u := range []struct {
		of   time.Duration
		unit string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if n := d.Abs() / u.of; n > 0 {
			text = fmt.Sprintf("%d %s", n, u.unit)
			break
		}
	}
	switch {
	case text == "":
		return "now"
	case d < 0:
		return "in " + text
	}
	return text + " ago"
}

// lease says how long a leader may act without another renewal of its lock.
func lease(s *nstancev1.GetShardStatusResponse) string {
	if s.GetLeaseLeft() == nil {
		return fleet.LeaseText(s)
	}
	return took(s.GetLeaseLeft().AsDuration())
}

// short returns the kind and the last characters of an instance ID, which tell it from others. Other text is returned
// as it is.
func short(id string) string {
	if _, err := ident.ParseID(id); err != nil {
		return id
	}
	return id[:3] + "…" + id[len(id)-confirmLength:]
}

// person returns the name of the actor of an event. For an operator without a name, it is the short form of the ID.
func person(actor string) string {
	if id, err := ident.ParseID(actor); err == nil && id.Prefix() == ident.OperatorPrefix {
		return "operator " + short(actor)
	}
	return actor
}

// runbook returns the address of the runbook for an alert of the given kind.
func runbook(kind string) string {
	return "https://github.com/nstance-kit/nstance/blob/main/docs/runbooks/" + url.PathEscape(kind) + ".md"
}

// binarySize formats a number of bytes.
func binarySize(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

// spaced returns a name with spaces in place of underscores.
func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

// tone returns the CSS class for a health, a state or a kind of event: good, warn, bad or idle.
func tone(name string) string {
	switch strings.TrimPrefix(name, "instance_") {
	case "healthy", "passing", "registered", "alert_resolved", "leader_started", "config_applied",
		"promoted":
		return "good"
	case "unhealthy", "silent", "failing", "lost", "alert_raised", "registration_refused", "config_refused",
		"events_lost":
		return "bad"
	case "stopping", "starting", "unregistered", "deleting", "draining", "preserved", "pending_deletion", "notice",
		"recommendation", "maintenance", "leader_ended":
		return "warn"
	}
	return "idle"
}

// segment is a part of a bar. X and Width are thousandths of the bar's width.
type segment struct {
	Class, Name string
	Count       int
	X, Width    float64
}

// segments lays out the parts of a bar.
func segments(counts ...count) []segment {
	total := 0
	for _, c := range counts {
		total += c.Count
	}
	var parts []segment
	x := 0.0
	for _, c := range counts {
		if c.Count == 0 {
			continue
		}
		width := 1000 * float64(c.Count) / float64(total)
		parts = append(parts, segment{c.Class, c.Name, c.Count, x, width})
		x += width
	}
	return parts
}

// problem contains what a page shows about an error.
type problem struct {
	status               int
	Shard, Message, Hint string
	Unavailable          bool
}

// errorView returns the view of an error.
func errorView(err error) *problem {
	var own *httpError
	var shard *fleet.Error
	switch {
	case errors.As(err, &own):
		return &problem{status: own.status, Message: own.message, Hint: own.hint}
	case errors.As(err, &shard):
		return &problem{status: httpapi.StatusOf(shard.Code), Shard: shard.Shard, Message: shard.Message,
			Hint: shard.Hint, Unavailable: shard.Code == codes.Unavailable || shard.Code == codes.DeadlineExceeded}
	}
	return &problem{status: http.StatusInternalServerError, Message: fmt.Sprint(err)}
}

package web

import (
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/serve/httpapi"
)

// parseTemplates returns a map from the name of each page to its template. It panics if a template has a mistake.
func parseTemplates(p *page) map[string]*template.Template {
	functions := template.FuncMap{
		"asset":    func(name string) string { return Path + "assets/" + p.assets + "/" + name },
		"instant":  instant,
		"stamp":    func(t any) string { return stamp(instant(t)) },
		"lease":    fleet.LeaseText,
		"blocked":  fleet.Blocked,
		"guard":    fleet.GuardText,
		"idle":     fleet.Idle,
		"took":     took,
		"spaced":   spaced,
		"tone":     tone,
		"shard":    shardPath,
		"group":    groupPath,
		"instance": instancePath,
		"events":   eventsPath,
		"segments": segments,
		"action":   newActionView,
		"settings": config.ReadSettings,
	}
	common := template.Must(template.New("").Funcs(functions).ParseFS(files, "templates/layout.html",
		"templates/parts.html"))
	pages := map[string]*template.Template{}
	names, _ := fs.Glob(files, "templates/*.html") // fails only for a wrong pattern
	for _, name := range names {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page != "layout" && page != "parts" {
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
	query := url.Values{}
	for name, value := range map[string]string{"shard": shard, "group": group, "instance": id} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return Path + "events?" + query.Encode()
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

// took formats a duration with three significant digits.
func took(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
}

// spaced returns a name with spaces in place of underscores.
func spaced(name string) string { return strings.ReplaceAll(name, "_", " ") }

// tone returns the CSS class for a health, a state or a kind of event: good, warn, bad or idle.
func tone(name string) string {
	switch strings.TrimPrefix(name, "instance_") {
	case "healthy", "registered", "alert_resolved", "leader_started", "config_applied":
		return "good"
	case "unhealthy", "silent", "lost", "alert_raised", "registration_refused", "config_refused", "events_lost":
		return "bad"
	case "stopping", "unregistered", "deleting", "pending_deletion", "notice", "leader_ended", "drifted":
		return "warn"
	}
	return "idle"
}

// actionView describes the form of an action on a group.
type actionView struct {
	*groupView
	Action, Title, About string
}

func newActionView(v *groupView, action, title, about string) actionView {
	return actionView{v, action, title, about}
}

// segment is a part of a bar. X and Width are thousandths of the bar's width.
type segment struct {
	Class    string
	Count    int
	X, Width float64
}

// segments lays out the parts of a bar.
func segments(counts []count) []segment {
	total := 0
	for _, c := range counts {
		total += c.Count
	}
	var parts []segment
	x := 0.0
	for _, c := range counts {
		width := 1000 * float64(c.Count) / float64(max(1, total))
		parts = append(parts, segment{c.Class, c.Count, x, width})
		x += width
	}
	return parts
}

// problem contains what a page shows about an error.
type problem struct {
	status                int
	Shard, Message, Hint  string
	Unavailable, Standing bool
}

// errorView returns the view of an error.
func errorView(err error) problem {
	var own *httpError
	var shard *fleet.Error
	switch {
	case errors.As(err, &own):
		return problem{status: own.status, Message: own.message, Hint: own.hint}
	case errors.As(err, &shard):
		return problem{status: httpapi.StatusOf(shard.Code), Shard: shard.Shard, Message: shard.Message,
			Hint: shard.Hint, Unavailable: shard.Code == codes.Unavailable || shard.Code == codes.DeadlineExceeded}
	}
	return problem{status: http.StatusInternalServerError, Message: fmt.Sprint(err)}
}

package httpapi

import (
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// route is one method of one path.
type route struct {
	method, path, name, summary string
	// open routes need no token. admin routes need one with the role admin.
	open, admin bool
	// shards means that the query selects shards.
	shards bool
	// query holds the parameters in addition to those that select shards.
	query []parameter
	// body and answer are values of the request and response types.
	body, answer any
	do           func(*call) (status int, body any, err error)
}

type parameter struct{ name, kind, about string }

func (r route) parameters() []parameter {
	if !r.shards {
		return r.query
	}
	return append([]parameter{
		{"shard", "string", "The shard to ask. Not needed if there is only one."},
		{"all_shards", "boolean", "Ask every shard."},
	}, r.query...)
}

// Health is the answer of GET /health.
type Health struct {
	Status  string `json:"status" jsonschema:"enum=ok"`
	Version string `json:"version"`
}

// ScaleRequest is the body of POST /group/scale.
type ScaleRequest struct {
	Group string  `json:"group"`
	Size  *uint32 `json:"size" jsonschema:"maximum=2147483647"`
}

// RolloutRequest is the body of POST /group/rollout.
type RolloutRequest struct {
	Group  string              `json:"group"`
	Action fleet.RolloutAction `json:"action" jsonschema:"enum=pause,enum=resume,enum=roll"`
}

// ConfirmOrphansRequest is the body of POST /orphans/confirm.
type ConfirmOrphansRequest struct {
	ProviderIDs []string `json:"provider_ids"`
}

func (a *api) routes() []route {
	return []route{
		{
			method: http.MethodGet, path: "/health", name: "health",
			summary: "Whether this process serves. Says nothing about shards.", open: true, answer: Health{},
			do: func(*call) (int, any, error) { return http.StatusOK, Health{"ok", a.Version}, nil },
		}, {
			method: http.MethodGet, path: "/openapi.json", name: "openapi", summary: "This document.", open: true,
			answer: map[string]any{},
			do:     func(*call) (int, any, error) { return http.StatusOK, a.document(), nil },
		}, {
			method: http.MethodGet, path: "/status", name: "status",
			summary: "How shards are led and whether they are well.", shards: true,
			answer: fleet.Answers[fleet.StatusAnswer]{},
			do:     func(c *call) (int, any, error) { return answer(a.Fleet.Status(c.Context(), c.shards)) },
		}, {
			method: http.MethodPost, path: "/server/step-down", name: "serverStepDown", admin: true,
			summary: "Make the leader hand over to another server.", shards: true,
			answer: fleet.Answers[fleet.StepDownAnswer]{},
			do: func(c *call) (int, any, error) {
				if err := c.empty(); err != nil {
					return 0, nil, err
				}
				c.detail = "step down"
				return answer(a.Fleet.StepDown(c.Context(), c.shards))
			},
		}, {
			method: http.MethodGet, path: "/orphans", name: "orphans", admin: true,
			summary: "The VMs of shards that have no record.", shards: true,
			answer: fleet.Answers[fleet.OrphansAnswer]{},
			do:     func(c *call) (int, any, error) { return answer(a.Fleet.Orphans(c.Context(), c.shards)) },
		}, {
			method: http.MethodPost, path: "/orphans/confirm", name: "orphansConfirm", admin: true,
			summary: "Allow the leader to terminate the VMs without a record. The body names all of them.",
			shards:  true, body: ConfirmOrphansRequest{}, answer: fleet.Answers[fleet.OrphansAnswer]{},
			do: a.confirmOrphans,
		}, {
			method: http.MethodGet, path: "/config/status", name: "configStatus",
			summary: "Which configuration is in force, and what is wrong with a newer one that was refused.",
			shards:  true, answer: fleet.Answers[fleet.ConfigAnswer]{},
			do: func(c *call) (int, any, error) {
				return answer(a.Fleet.ConfigStatus(c.Context(), c.shards))
			},
		}, {
			method: http.MethodPost, path: "/config/refresh", name: "configRefresh",
			summary: "Have shards read and apply their configuration now. An invalid one is an error of its shard; " +
				"the one before stays.",
			shards: true, answer: fleet.Answers[fleet.RefreshAnswer]{},
			do: func(c *call) (int, any, error) {
				if err := c.empty(); err != nil {
					return 0, nil, err
				}
				return answer(a.Fleet.Refresh(c.Context(), c.shards))
			},
		}, {
			method: http.MethodGet, path: "/groups", name: "groups", summary: "The tenant's groups.", shards: true,
			answer: fleet.Answers[fleet.GroupsAnswer]{},
			do: func(c *call) (int, any, error) {
				return answer(a.Fleet.Groups(c.Context(), c.shards))
			},
		}, {
			method: http.MethodGet, path: "/group/explain", name: "groupExplain",
			summary: "What the leaders would do next for a group and why. Changes nothing.", shards: true,
			query:  []parameter{{"group", "string", "The group. Required."}},
			answer: fleet.Answers[fleet.ExplanationAnswer]{},
			do: func(c *call) (int, any, error) {
				group := c.URL.Query().Get("group")
				if err := ident.ValidateName(group); err != nil {
					return 0, nil, badRequest("query: group: %v", err)
				}
				return answer(a.Fleet.Explain(c.Context(), c.shards, group))
			},
		}, {
			method: http.MethodGet, path: "/events", name: "events",
			summary: "The shards' journals, from the oldest to the newest event.", shards: true,
			query: []parameter{{"since", "string", "Only events from this time on (RFC 3339)."},
				{"group", "string", "Only events of this group."},
				{"instance_id", "string", "Only events of this instance."},
				{"kind", "string", "Only events of this kind."}, {"cause", "string", "Only events with this cause."}},
			answer: fleet.Answers[fleet.HistoryAnswer]{},
			do:     a.events,
		}, {
			method: http.MethodPost, path: "/group/scale", name: "groupScale",
			summary: "Change the size of a group and nothing else.", shards: true, body: ScaleRequest{},
			answer: fleet.Answers[fleet.GroupAnswer]{},
			do:     a.scale,
		}, {
			method: http.MethodPost, path: "/group/rollout", name: "groupRollout",
			summary: "Pause or resume the rollout of a group, or replace all its instances.", shards: true,
			body: RolloutRequest{}, answer: fleet.Answers[fleet.GroupAnswer]{},
			do: a.rollout,
		}, {
			method: http.MethodGet, path: "/instances", name: "instances", summary: "The tenant's instances.",
			shards: true,
			query:  []parameter{{"group", "string", "Only instances of this group."}},
			answer: fleet.Answers[fleet.InstancesAnswer]{},
			do: func(c *call) (int, any, error) {
				group := c.URL.Query().Get("group")
				if group != "" && ident.ValidateName(group) != nil {
					return 0, nil, badRequest("query: group: %v", ident.ValidateName(group))
				}
				return answer(a.Fleet.Instances(c.Context(), c.shards, group))
			},
		},
	}
}

func (a *api) events(c *call) (int, any, error) {
	query := c.URL.Query()
	filter := fleet.HistoryFilter{Group: query.Get("group"), InstanceID: query.Get("instance_id"),
		Cause: query.Get("cause")}
	if kind := query.Get("kind"); kind != "" {
		filter.Kinds = []string{kind}
	}
	if text := query.Get("since"); text != "" {
		var err error
		if filter.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return 0, nil, badRequest("query: since: want a time like 2026-01-02T15:04:05Z")
		}
	}
	return answer(a.Fleet.History(c.Context(), c.shards, filter))
}

func (a *api) scale(c *call) (int, any, error) {
	var body ScaleRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	if err := ident.ValidateName(body.Group); err != nil {
		return 0, nil, badRequest("body: group: %v", err)
	}
	if body.Size == nil || *body.Size > 1<<31-1 {
		return 0, nil, badRequest("body: size: want a number of instances, from 0 to 2147483647")
	}
	c.detail = fmt.Sprintf("group %s to size %d", body.Group, *body.Size)
	return answer(a.Fleet.Scale(c.Context(), c.shards, body.Group, *body.Size))
}

func (a *api) rollout(c *call) (int, any, error) {
	var body RolloutRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	if err := ident.ValidateName(body.Group); err != nil {
		return 0, nil, badRequest("body: group: %v", err)
	}
	switch body.Action {
	case fleet.PauseRollout, fleet.ResumeRollout, fleet.RollGroup:
	default:
		return 0, nil, badRequest("body: action: want pause, resume or roll")
	}
	c.detail = fmt.Sprintf("%s group %s", body.Action, body.Group)
	return answer(a.Fleet.Rollout(c.Context(), c.shards, body.Group, body.Action))
}

func (a *api) confirmOrphans(c *call) (int, any, error) {
	var body ConfirmOrphansRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	if len(c.shards) != 1 {
		return 0, nil, badRequest("query: all_shards: confirm the orphans of one shard at a time")
	}
	c.detail = fmt.Sprintf("terminate %d orphans", len(body.ProviderIDs))
	return answer(a.Fleet.ConfirmOrphans(c.Context(), c.shards, body.ProviderIDs))
}

// answer returns what a route answers for its shards.
func answer[T any, P fleet.Answer[T]](answers []T) (int, any, error) {
	return statusOf[T, P](answers), fleet.Answers[T]{Shards: answers}, nil
}

// statusOf returns 200 if every shard succeeded. If one of several shards failed, it returns 502, and the answers say
// which. If the only shard failed, it returns the status for that error.
func statusOf[T any, P fleet.Answer[T]](answers []T) int {
	failed := fleet.Failed[T, P](answers)
	switch {
	case len(failed) == 0:
		return http.StatusOK
	case len(answers) > 1:
		return http.StatusBadGateway
	}
	switch failed[0].Code {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Aborted, codes.AlreadyExists, codes.FailedPrecondition:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded, codes.Canceled:
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway // also if the shard rejects this process's certificate, which the caller cannot change
}

package httpapi

import (
	"fmt"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// route is one method of one path.
type route struct {
	method, path, name, summary string
	// A route needs no token if `open` is set. It needs a token with the role admin if `admin` is set.
	open, admin bool
	// shards means that the query selects shards.
	shards bool
	// query lists the query parameters, except those that select shards.
	query []parameter
	// body and answer are values of the request and response types.
	body, answer any
	do           func(*call) (status int, body any, err error)
	// Routes that stream have the function `follow` instead of `do`. follow sends values of the answer's type, one on
	// each line, until the client disconnects.
	follow func(c *call, send func(any)) error
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

// ConfirmOrphansRequest is the body of POST /orphans/confirm.
type ConfirmOrphansRequest struct {
	ProviderIDs []string `json:"provider_ids"`
}

func (a *api) routes() []route {
	return slices.Concat(a.shardRoutes(), a.eventRoutes(), a.groupRoutes(), a.instanceRoutes())
}

func (a *api) shardRoutes() []route {
	return []route{
		{
			method: http.MethodGet, path: "/health", name: "health",
			summary: "Whether this process serves requests. Shards do not matter.", open: true, answer: Health{},
			do: func(*call) (int, any, error) { return http.StatusOK, Health{"ok", a.Version}, nil },
		}, {
			method: http.MethodGet, path: "/openapi.json", name: "openapi", summary: "This document.", open: true,
			answer: map[string]any{},
			do:     func(*call) (int, any, error) { return http.StatusOK, a.document(), nil },
		}, {
			method: http.MethodGet, path: "/status", name: "status",
			summary: "Leaders, configurations, sizes and active alerts of shards.", shards: true,
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
			summary: "The VMs of shards that have no record in the bucket.", shards: true,
			answer: fleet.Answers[fleet.OrphansAnswer]{},
			do:     func(c *call) (int, any, error) { return answer(a.Fleet.Orphans(c.Context(), c.shards)) },
		}, {
			method: http.MethodPost, path: "/orphans/confirm", name: "orphansConfirm", admin: true,
			summary: "Allow the leader to terminate the VMs without a record. The body names all of them.",
			shards:  true, body: ConfirmOrphansRequest{},
			answer: fleet.Answers[fleet.ConfirmAnswer]{},
			do:     a.confirmOrphans,
		}, {
			method: http.MethodGet, path: "/config/status", name: "configStatus",
			summary: "Which configuration is in force, and what is wrong with a newer one that was refused.",
			shards:  true, answer: fleet.Answers[fleet.ConfigAnswer]{},
			do: func(c *call) (int, any, error) {
				return answer(a.Fleet.ConfigStatus(c.Context(), c.shards))
			},
		}, {
			method: http.MethodPost, path: "/config/refresh", name: "configRefresh",
			summary: "Make leaders read and apply their shards' configurations now. An invalid configuration is an " +
				"error of its shard, which keeps the one before.",
			shards: true, answer: fleet.Answers[fleet.RefreshAnswer]{},
			do: func(c *call) (int, any, error) {
				if err := c.empty(); err != nil {
					return 0, nil, err
				}
				return answer(a.Fleet.Refresh(c.Context(), c.shards))
			},
		},
	}
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

// answer returns the HTTP status and the body for the answers of shards.
func answer[T fleet.Result](answers []T) (int, any, error) {
	return statusOf(answers), fleet.Answers[T]{Shards: answers}, nil
}

// statusOf returns 200 if every shard succeeded. If one of several shards failed, it returns 502, and the answers say
// which shards failed. If the only shard failed, it returns the status for that error.
func statusOf[T fleet.Result](answers []T) int {
	failed := fleet.Failed(answers)
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

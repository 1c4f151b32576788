package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// ScaleRequest is the body of POST /group/scale.
type ScaleRequest struct {
	Group string  `json:"group"`
	Size  *uint32 `json:"size" jsonschema:"maximum=2147483647"`
	Total bool    `json:"total,omitempty" jsonschema:"description=With all_shards: size is the sum over the shards that have the group and is divided evenly"`
}

// RolloutRequest is the body of POST /group/rollout.
type RolloutRequest struct {
	Group  string              `json:"group"`
	Action fleet.RolloutAction `json:"action" jsonschema:"enum=pause,enum=resume,enum=roll"`
}

// GroupPatch is the body of POST /group/create and POST /group/set: a JSON merge patch (RFC 7396) of a group in the
// shard's configuration.
type GroupPatch struct{}

// GroupRequest is the body of requests that need only the name of a group.
type GroupRequest struct {
	Group string `json:"group"`
}

var groupParameter = []parameter{{"group", "string", "The group. Required."}}

var explainParameters = append(groupParameter[:1:1],
	parameter{"size", "integer", "Plan as if the group had this size."})

func (a *api) groupRoutes() []route {
	return []route{
		{
			method: http.MethodGet, path: "/groups", name: "groups", summary: "The tenant's groups.", shards: true,
			answer: fleet.Answers[fleet.GroupsAnswer]{},
			do: func(c *call) (int, any, error) {
				return answer(a.Fleet.Groups(c.Context(), c.shards))
			},
		}, {
			method: http.MethodGet, path: "/group", name: "group", summary: "One group of the tenant.", shards: true,
			query: groupParameter, answer: fleet.Answers[fleet.GroupsAnswer]{},
			do: func(c *call) (int, any, error) {
				group, err := c.group(c.URL.Query().Get("group"), "query")
				if err != nil {
					return 0, nil, err
				}
				return answer(a.Fleet.Group(c.Context(), c.shards, group))
			},
		}, {
			method: http.MethodGet, path: "/group/explain", name: "groupExplain",
			summary: "What the leaders would do next for a group and why. The call changes nothing.", shards: true,
			query: explainParameters, answer: fleet.Answers[fleet.ExplanationAnswer]{},
			do: func(c *call) (int, any, error) {
				group, err := c.group(c.URL.Query().Get("group"), "query")
				if err != nil {
					return 0, nil, err
				}
				size, err := c.size()
				if err != nil {
					return 0, nil, err
				}
				return answer(a.Fleet.Explain(c.Context(), c.shards, group, size))
			},
		}, {
			method: http.MethodPost, path: "/group/scale", name: "groupScale",
			summary: "Change the size of a group and nothing else.", shards: true, body: ScaleRequest{},
			answer: fleet.Answers[fleet.ScaleAnswer]{},
			do:     a.scale,
		}, {
			method: http.MethodPost, path: "/group/rollout", name: "groupRollout",
			summary: "Pause or resume the rollout of a group, or replace all its instances.", shards: true,
			body: RolloutRequest{}, answer: fleet.Answers[fleet.GroupAnswer]{},
			do: a.rollout,
		}, {
			method: http.MethodPost, path: "/group/create", name: "groupCreate",
			summary: "Create a dynamic group. The body has the form of a group in the shard's configuration.",
			shards:  true, query: groupParameter, body: GroupPatch{}, answer: fleet.Answers[fleet.GroupAnswer]{},
			do: func(c *call) (int, any, error) { return a.changeGroup(c, "create", a.Fleet.CreateGroup) },
		}, {
			method: http.MethodPost, path: "/group/set", name: "groupSet",
			summary: "Change settings of a group. The body is a JSON merge patch: null removes the group's own value.",
			shards:  true, query: groupParameter, body: GroupPatch{}, answer: fleet.Answers[fleet.GroupAnswer]{},
			do: func(c *call) (int, any, error) { return a.changeGroup(c, "change", a.Fleet.SetGroup) },
		}, {
			method: http.MethodPost, path: "/group/delete", name: "groupDelete",
			summary: "Delete a dynamic group, or the changes of operators to a static one.", shards: true,
			body: GroupRequest{}, answer: fleet.Answers[fleet.GroupDeleteAnswer]{},
			do: a.deleteGroup,
		},
	}
}

// group checks the name of a group. `where` says where the request contains the name: in the query or in the body.
func (c *call) group(name, where string) (string, error) {
	if err := ident.ValidateName(name); err != nil {
		return "", badRequest("%s: group: %v", where, err)
	}
	return name, nil
}

// size returns the size in the query, or nil.
func (c *call) size() (*uint32, error) {
	text := c.URL.Query().Get("size")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, badRequest("query: size: want a number of instances, from 0 to 2147483647")
	}
	size := uint32(n)
	return &size, nil
}

func (a *api) scale(c *call) (int, any, error) {
	var body ScaleRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	group, err := c.group(body.Group, "body")
	if err != nil {
		return 0, nil, err
	}
	if body.Size == nil || *body.Size > 1<<31-1 {
		return 0, nil, badRequest("body: size: want a number of instances, from 0 to 2147483647")
	}
	c.detail = fmt.Sprintf("group %s to size %d", group, *body.Size)
	if body.Total {
		c.detail += " in all together"
		return answer(a.Fleet.ScaleTotal(c.Context(), c.shards, group, *body.Size))
	}
	return answer(a.Fleet.Scale(c.Context(), c.shards, group, *body.Size))
}

func (a *api) rollout(c *call) (int, any, error) {
	var body RolloutRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	group, err := c.group(body.Group, "body")
	if err != nil {
		return 0, nil, err
	}
	switch body.Action {
	case fleet.PauseRollout, fleet.ResumeRollout, fleet.RollGroup:
	default:
		return 0, nil, badRequest("body: action: want pause, resume or roll")
	}
	c.detail = fmt.Sprintf("%s group %s", body.Action, group)
	return answer(a.Fleet.Rollout(c.Context(), c.shards, group, body.Action))
}

// changeGroup creates or changes a group with the patch in the body.
func (a *api) changeGroup(c *call, verb string, do func(ctx context.Context, shards []string, name string,
	patch config.Patch) []fleet.GroupAnswer) (int, any, error) {
	group, err := c.group(c.URL.Query().Get("group"), "query")
	if err != nil {
		return 0, nil, err
	}
	body, err := c.readBody()
	if err != nil {
		return 0, nil, err
	}
	patch, problems := config.ParsePatch("", body)
	if errs := problems.Errors(); len(errs) > 0 {
		return 0, nil, badRequest("body: %s", errs.Brief())
	}
	c.detail = verb + " group " + group + ": " + strings.Join(patch.Fields(), ", ") // values may be secret
	return answer(do(c.Context(), c.shards, group, patch))
}

func (a *api) deleteGroup(c *call) (int, any, error) {
	var body GroupRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	group, err := c.group(body.Group, "body")
	if err != nil {
		return 0, nil, err
	}
	c.detail = "delete group " + group
	return answer(a.Fleet.DeleteGroup(c.Context(), c.shards, group))
}

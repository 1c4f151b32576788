package httpapi

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// CreateInstanceRequest is the body of POST /instance/create.
type CreateInstanceRequest struct {
	Group        string            `json:"group"`
	ID           string            `json:"instance_id,omitempty" jsonschema:"description=ID of the new instance with the group's kind as prefix. The server makes one if it is missing"`
	InstanceType string            `json:"instance_type,omitempty"`
	Vars         map[string]string `json:"vars,omitempty"`
}

// DeleteInstanceRequest is the body of POST /instance/delete.
type DeleteInstanceRequest struct {
	ID        string `json:"instance_id"`
	Reason    string `json:"reason,omitempty"`
	Decrement bool   `json:"decrement,omitempty" jsonschema:"description=Also lower the size of the instance's group by one"`
}

// ProtectInstanceRequest is the body of POST /instance/protect.
type ProtectInstanceRequest struct {
	ID        string `json:"instance_id"`
	Protected *bool  `json:"protected,omitempty" jsonschema:"description=False ends the protection. True if it is missing"`
}

var instanceParameter = []parameter{{"instance_id", "string", "The instance. Required."}}

func (a *api) instanceRoutes() []route {
	return []route{
		{
			method: http.MethodGet, path: "/instances", name: "instances", summary: "The tenant's instances.",
			shards: true,
			query:  []parameter{{"group", "string", "Only instances of this group."}},
			answer: fleet.Answers[fleet.InstancesAnswer]{},
			do: func(c *call) (int, any, error) {
				group := c.URL.Query().Get("group")
				if group != "" {
					if _, err := c.group(group, "query"); err != nil {
						return 0, nil, err
					}
				}
				return answer(a.Fleet.Instances(c.Context(), c.shards, group))
			},
		}, {
			method: http.MethodGet, path: "/instance", name: "instance", shards: true,
			summary: "One instance. With all_shards, every shard is asked for it.",
			query:   instanceParameter, answer: fleet.Answers[fleet.InstanceAnswer]{},
			do: func(c *call) (int, any, error) {
				id, err := c.instance(c.URL.Query().Get("instance_id"), "query")
				if err != nil {
					return 0, nil, err
				}
				return answer(fleet.Elsewhere(a.Fleet.Instance(c.Context(), c.shards, id)))
			},
		}, {
			method: http.MethodGet, path: "/instance/explain", name: "instanceExplain", shards: true,
			summary: "What the leader would do next for an instance and why. The call changes nothing.",
			query:   instanceParameter, answer: fleet.Answers[fleet.ExplanationAnswer]{},
			do: func(c *call) (int, any, error) {
				id, err := c.instance(c.URL.Query().Get("instance_id"), "query")
				if err != nil {
					return 0, nil, err
				}
				return answer(fleet.Elsewhere(a.Fleet.ExplainInstance(c.Context(), c.shards, id)))
			},
		}, {
			method: http.MethodPost, path: "/instance/create", name: "instanceCreate", shards: true,
			summary: "Create an on-demand instance of a group. The same instance_id never makes a second one.",
			body:    CreateInstanceRequest{}, answer: fleet.Answers[fleet.CreationAnswer]{},
			do: a.createInstance,
		}, {
			method: http.MethodPost, path: "/instance/delete", name: "instanceDelete", shards: true,
			summary: "Delete an instance. If it counts towards its group's size, it is replaced except with decrement.",
			body:    DeleteInstanceRequest{}, answer: fleet.Answers[fleet.DeletionAnswer]{},
			do: a.deleteInstance,
		}, {
			method: http.MethodPost, path: "/instance/protect", name: "instanceProtect", shards: true,
			summary: "Protect an instance from rollouts, eligible_age and scale-downs, or end the protection.",
			body:    ProtectInstanceRequest{}, answer: fleet.Answers[fleet.ProtectionAnswer]{},
			do: a.protectInstance,
		},
	}
}

// instance parses the ID of an instance. `where` says where the request contains the ID: in the query or in the body.
func (c *call) instance(text, where string) (ident.ID, error) {
	id, err := ident.ParseID(text)
	if err != nil {
		return ident.ID{}, badRequest("%s: instance_id: %v", where, err)
	}
	return id, nil
}

func (a *api) createInstance(c *call) (int, any, error) {
	var body CreateInstanceRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	group, err := c.group(body.Group, "body")
	if err != nil {
		return 0, nil, err
	}
	var id ident.ID
	if body.ID != "" {
		if id, err = c.instance(body.ID, "body"); err != nil {
			return 0, nil, err
		}
		if len(c.shards) != 1 {
			return 0, nil, badRequest("query: all_shards: an instance_id is of one shard")
		}
	}
	c.detail = "create an instance of group " + group
	return answer(a.Fleet.CreateInstance(c.Context(), c.shards, group, id, body.InstanceType, body.Vars))
}

func (a *api) deleteInstance(c *call) (int, any, error) {
	var body DeleteInstanceRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	id, err := c.instance(body.ID, "body")
	if err != nil {
		return 0, nil, err
	}
	c.detail = fmt.Sprintf("delete instance %s", id)
	if body.Decrement {
		c.detail += " and lower the size of its group"
	}
	reason := cmp.Or(body.Reason, "requested over HTTP by "+c.who)
	return answer(fleet.Elsewhere(a.Fleet.DeleteInstance(c.Context(), c.shards, id, reason, body.Decrement)))
}

func (a *api) protectInstance(c *call) (int, any, error) {
	var body ProtectInstanceRequest
	if err := c.read(&body); err != nil {
		return 0, nil, err
	}
	id, err := c.instance(body.ID, "body")
	if err != nil {
		return 0, nil, err
	}
	protected := body.Protected == nil || *body.Protected
	c.detail = fmt.Sprintf("protect instance %s: %t", id, protected)
	return answer(fleet.Elsewhere(a.Fleet.ProtectInstance(c.Context(), c.shards, id, protected)))
}

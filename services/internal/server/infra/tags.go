package infra

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Names of tags. A cloud adds its own prefix to them. [Tags.Values] has the others.
const (
	TagCluster    = "cluster"
	TagShard      = "shard"
	TagInstanceID = "instance-id"
)

// Values returns the tags as texts by their names. They depend only on t, so that a repeated request has the same
// bytes.
func (t Tags) Values() map[string]string {
	values := map[string]string{
		TagCluster: t.Cluster, TagShard: t.Shard, TagInstanceID: t.Instance.String(), "tenant": t.Tenant,
		"term": strconv.FormatUint(t.Term, 10), "infra-hash": t.InfraHash, "group": t.Group, "template": t.Template,
		"kind": t.Kind, "on-demand": strconv.FormatBool(t.OnDemand),
	}
	if !t.CreatedAt.IsZero() {
		values["created-at"] = t.CreatedAt.UTC().Format(time.RFC3339Nano)
	}
	if t.Spot {
		values["spot"] = "true"
	}
	return values
}

// ParseTags parses texts that [Tags.Values] has returned. The function value returns the text with a name, or "". If a
// text cannot be parsed, ParseTags leaves out the field and names it in the warning.
func ParseTags(value func(name string) string) (t Tags, warning string) {
	t = Tags{Owner: Owner{Cluster: value(TagCluster), Shard: value(TagShard)}, Tenant: value("tenant"),
		InfraHash: value("infra-hash"), Group: value("group"), Template: value("template"), Kind: value("kind"),
		OnDemand: value("on-demand") == "true", Spot: value("spot") == "true"}
	var warnings []string
	warn := func(name string, err error) {
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("tag %s: %v", name, err))
		}
	}
	var err error
	t.Instance, err = ident.ParseID(value(TagInstanceID))
	warn(TagInstanceID, err)
	t.Term, err = strconv.ParseUint(value("term"), 10, 64)
	warn("term", err)
	if text := value("on-demand"); text != "true" && text != "false" && text != "" {
		warn("on-demand", fmt.Errorf("%q is neither true nor false", text))
	}
	if text := value("created-at"); text != "" {
		t.CreatedAt, err = time.Parse(time.RFC3339Nano, text)
		t.CreatedAt = t.CreatedAt.UTC()
		warn("created-at", err)
	}
	return t, strings.Join(warnings, "; ")
}

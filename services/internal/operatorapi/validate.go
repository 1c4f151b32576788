package operatorapi

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Limits of a request. They are generous and only keep a mistaken request from doing harm.
const (
	maxSize     = 100_000 // instances of a group
	maxList     = 64      // entries of a list
	maxOrphans  = 16_384  // orphans that one request confirms
	maxWord     = 256     // bytes of a name that is not an identifier
	maxReason   = 512     // bytes
	maxVars     = 1024    // entries
	maxVarsSize = 96 << 10
	maxArgs     = 64 << 10
	maxArgsDeep = 32
	maxDrain    = 30 * 24 * time.Hour
)

// groupName checks the name of a group.
func groupName(field, name string) error {
	if err := ident.ValidateName(name); err != nil {
		return invalid(field, "%v", err)
	}
	return nil
}

func instanceID(text string) (ident.ID, error) {
	if text == "" {
		return ident.ID{}, invalid("instance_id", "is empty")
	}
	id, err := ident.ParseID(text)
	if err != nil {
		return ident.ID{}, invalid("instance_id", "%v", err)
	}
	return id, nil
}

// word checks that a text consists of at most limit bytes of printable UTF-8. It does not check the meaning, because
// another system interprets the text.
func word(field, text string, limit int) error {
	switch {
	case len(text) > limit:
		return invalid(field, "has %d bytes, at most %d are allowed", len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || r == unicode.ReplacementChar
	}):
		return invalid(field, "holds control characters or is not UTF-8")
	}
	return nil
}

func words(field string, list []string) error {
	if len(list) > maxList {
		return invalid(field, "has %d entries, at most %d are allowed", len(list), maxList)
	}
	for _, text := range list {
		if text == "" {
			return invalid(field, "has an empty entry")
		}
		if err := word(field, text, maxWord); err != nil {
			return err
		}
	}
	return nil
}

func checkVars(vars map[string]string) error {
	if len(vars) > maxVars {
		return invalid("vars", "has %d entries, at most %d are allowed", len(vars), maxVars)
	}
	total := 0
	for name, value := range vars {
		if name == "" {
			return invalid("vars", "the name of a variable is empty")
		}
		if err := word("vars", name, maxWord); err != nil {
			return err
		}
		if total += len(name) + len(value); total > maxVarsSize {
			return invalid("vars", "are more than %d bytes", maxVarsSize)
		}
	}
	return nil
}

// parseArgs parses args_json as strictly as the dynamic groups in the bucket are parsed. It keeps numbers as they are,
// and rejects duplicate names. It returns nil for {}, which means that only the template sets arguments.
func parseArgs(text string) (map[string]any, error) {
	spec, err := parseObject("args_json", "args", text)
	if err != nil || len(spec.Args) == 0 {
		return nil, err
	}
	return spec.Args, nil
}

// parseObject parses a JSON object as a field of a group. The parameter request is the name of the request's field that
// contains the text.
func parseObject(request, field, text string) (spec config.GroupSpec, err error) {
	return parseField(request, field, text, "{")
}

// parseField parses JSON as a field of a group. The parameter begins is the character with which the JSON must begin: {
// or [.
func parseField(request, field, text, begins string) (spec config.GroupSpec, err error) {
	if len(text) > maxArgs {
		return spec, invalid(request, "has %d bytes, at most %d are allowed", len(text), maxArgs)
	}
	src := []byte(text)
	if deep(src) > maxArgsDeep {
		return spec, invalid(request, "is nested deeper than %d", maxArgsDeep)
	}
	if !json.Valid(src) {
		return spec, invalid(request, "is not JSON")
	}
	if trimmed := bytes.TrimSpace(src); !bytes.HasPrefix(trimmed, []byte(begins)) {
		return spec, invalid(request, "is not a JSON %s", map[string]string{"{": "object", "[": "array"}[begins])
	}
	before, after := `{"t": {"g": {"`+field+`": `, `}}}`
	groups, problems := config.ParseGroups("", slices.Concat([]byte(before), src, []byte(after)))
	if errs := problems.Errors(); len(errs) > 0 {
		path := strings.TrimPrefix(strings.TrimPrefix(errs[0].Path, "t.g."+field), ".")
		return spec, invalid(strings.TrimSuffix(request+": "+path, ": "), "%s", errs[0].Message)
	}
	return groups.Tenants["t"]["g"], nil
}

// deep returns the nesting depth of objects and lists in a text that may be JSON.
func deep(src []byte) int {
	most, depth := 0, 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '{', '[':
			depth++
			most = max(most, depth)
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(src) && src[i] != '"'; i++ {
				if src[i] == '\\' {
					i++
				}
			}
		}
	}
	return most
}

// upsert is a valid UpsertGroupRequest with its parsed fields.
type upsert struct {
	req   *nstancev1.UpsertGroupRequest
	args  map[string]any
	drain *config.Duration
	// rollout is the parsed rollout_json; nil if the request has none.
	rollout *config.Rollout
	// disruption, purchase and schedules are the parsed disruption_json, purchase_json and schedules_json; nil if the
	// request has none.
	disruption *config.Disruption
	purchase   *config.Purchase
	schedules  []config.Schedule
}

// clearable holds the fields that a request can reset to the value of the template or the shard, with the functions
// that reset them.
var clearable = map[string]func(*config.GroupSpec){
	"size":            func(s *config.GroupSpec) { s.Size = nil },
	"instance_type":   func(s *config.GroupSpec) { s.InstanceType = "" },
	"instance_types":  func(s *config.GroupSpec) { s.InstanceTypes = nil },
	"subnet_pool":     func(s *config.GroupSpec) { s.SubnetPool = "" },
	"vars":            func(s *config.GroupSpec) { s.Vars = nil },
	"args_json":       func(s *config.GroupSpec) { s.Args = nil },
	"load_balancers":  func(s *config.GroupSpec) { s.LoadBalancers = nil },
	"drain_timeout":   func(s *config.GroupSpec) { s.DrainTimeout = nil },
	"max_surge":       func(s *config.GroupSpec) { s.MaxSurge = nil },
	"max_unhealthy":   func(s *config.GroupSpec) { s.MaxUnhealthy = "" },
	"rollout_json":    func(s *config.GroupSpec) { s.Rollout = nil },
	"disruption_json": func(s *config.GroupSpec) { s.Disruption = nil },
	"schedules_json":  func(s *config.GroupSpec) { s.Schedules = nil },
	"purchase_json":   func(s *config.GroupSpec) { s.Purchase = nil },
}

// parseUpsert checks a request as far as possible without the shard's configuration.
func parseUpsert(req *nstancev1.UpsertGroupRequest) (upsert, error) {
	u := upsert{req: req}
	if err := groupName("group", req.GetGroup()); err != nil {
		return u, err
	}
	if n := req.GetSize(); n > maxSize {
		return u, invalid("size", "is %d, at most %d are allowed", n, maxSize)
	}
	if n := req.GetMaxSurge(); n > maxSize {
		return u, invalid("max_surge", "is %d, at most %d are allowed", n, maxSize)
	}
	for _, name := range []struct {
		field, value string
	}{{"template", req.GetTemplate()}, {"subnet_pool", req.GetSubnetPool()}} {
		if name.value != "" {
			if err := groupName(name.field, name.value); err != nil {
				return u, err
			}
		}
	}
	for _, text := range []struct {
		field, value string
	}{{"instance_type", req.GetInstanceType()}, {"max_unhealthy", req.GetMaxUnhealthy()},
		{"expected_etag", req.GetExpectedEtag()}} {
		if err := word(text.field, text.value, maxWord); err != nil {
			return u, err
		}
	}
	if err := words("instance_types", req.GetInstanceTypes()); err != nil {
		return u, err
	}
	if err := words("load_balancers", req.GetLoadBalancers()); err != nil {
		return u, err
	}
	if len(req.GetVars()) > 0 && !req.GetSetVars() {
		return u,
			invalid("set_vars",
				"is false although vars are set: set it to true to replace all vars of the group")
	}
	if err := checkVars(req.GetVars()); err != nil {
		return u, err
	}
	if req.GetArgsJson() != "" {
		args, err := parseArgs(req.GetArgsJson())
		if err != nil {
			return u, err
		}
		u.args = args
	}
	if req.GetRolloutJson() != "" {
		spec, err := parseObject("rollout_json", "rollout", req.GetRolloutJson())
		if err != nil {
			return u, err
		}
		u.rollout = spec.Rollout
	}
	if req.GetDisruptionJson() != "" {
		spec, err := parseObject("disruption_json", "disruption", req.GetDisruptionJson())
		if err != nil {
			return u, err
		}
		u.disruption = spec.Disruption
	}
	if req.GetPurchaseJson() != "" {
		spec, err := parseObject("purchase_json", "purchase", req.GetPurchaseJson())
		if err != nil {
			return u, err
		}
		u.purchase = spec.Purchase
	}
	if req.GetSchedulesJson() != "" {
		spec, err := parseField("schedules_json", "schedules", req.GetSchedulesJson(), "[")
		if err != nil {
			return u, err
		}
		u.schedules = spec.Schedules
	}
	if d := req.GetDrainTimeout(); d != nil {
		if err := d.CheckValid(); err != nil {
			return u, invalid("drain_timeout", "is not a duration")
		}
		drain := config.Duration(d.AsDuration())
		if drain < 0 || drain > config.Duration(maxDrain) {
			return u, invalid("drain_timeout", "is not between 0 and %s", config.Duration(maxDrain))
		}
		u.drain = &drain
	}
	if req.GetMustCreate() && (req.GetMustExist() || req.GetExpectedEtag() != "") {
		return u, invalid("must_create", "contradicts must_exist and expected_etag")
	}
	return u, u.checkCleared()
}

// checkCleared rejects names of unknown fields and of fields that the request also sets.
func (u upsert) checkCleared() error {
	const field = "clear_fields"
	set := u.set()
	if n := len(u.req.GetClearFields()); n > maxList {
		return invalid(field, "has %d entries, at most %d are allowed", n, maxList)
	}
	for _, name := range u.req.GetClearFields() {
		switch {
		case clearable[name] == nil:
			return invalid(field, "has no name of a field that can be cleared: those are %s",
				strings.Join(slices.Sorted(maps.Keys(clearable)), ", "))
		case set[name]:
			return invalid(field, "clears %s, which is set too", name)
		}
	}
	return nil
}

// set returns the fields of the group that the request sets.
func (u upsert) set() map[string]bool {
	req := u.req
	return map[string]bool{
		"size": req.Size != nil, "instance_type": req.GetInstanceType() != "",
		"instance_types": len(req.GetInstanceTypes()) > 0,
		"subnet_pool":    req.GetSubnetPool() != "", "vars": req.GetSetVars(), "args_json": req.GetArgsJson() != "",
		"load_balancers": len(req.GetLoadBalancers()) > 0, "drain_timeout": u.drain != nil,
		"max_surge":       req.MaxSurge != nil,
		"max_unhealthy":   req.GetMaxUnhealthy() != "",
		"rollout_json":    req.GetRolloutJson() != "",
		"disruption_json": req.GetDisruptionJson() != "",
		"schedules_json":  req.GetSchedulesJson() != "",
		"purchase_json":   req.GetPurchaseJson() != "",
	}
}

// restricted returns the names of the fields that the request sets although a static group does not allow changing
// them.
func (u upsert) restricted() []string {
	req := u.req
	var names []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"template", req.GetTemplate() != ""}, {"instance_types", len(req.GetInstanceTypes()) > 0},
		{"subnet_pool", req.GetSubnetPool() != ""},
		{"args_json", u.args != nil}, {"load_balancers", len(req.GetLoadBalancers()) > 0},
		{"drain_timeout", u.drain != nil},
		{"max_surge", req.MaxSurge != nil}, {"max_unhealthy", req.GetMaxUnhealthy() != ""},
		{"rollout_json", u.rollout != nil},
		{"disruption_json", u.disruption != nil}, {"schedules_json", u.schedules != nil},
		{"purchase_json", u.purchase != nil},
	} {
		if field.set {
			names = append(names, field.name)
		}
	}
	return names
}

// apply writes the fields that the request sets into a group's override and keeps the other fields.
func (u upsert) apply(spec *config.GroupSpec) {
	req := u.req
	for _, name := range req.GetClearFields() {
		clearable[name](spec)
	}
	if req.Size != nil {
		size := int(req.GetSize())
		spec.Size = &size
	}
	if req.MaxSurge != nil {
		surge := int(req.GetMaxSurge())
		spec.MaxSurge = &surge
	}
	for _, text := range []struct {
		to    *string
		value string
	}{{&spec.Template, req.GetTemplate()}, {&spec.InstanceType, req.GetInstanceType()},
		{&spec.SubnetPool, req.GetSubnetPool()},
		{&spec.MaxUnhealthy, req.GetMaxUnhealthy()}} {
		if text.value != "" {
			*text.to = text.value
		}
	}
	if list := req.GetInstanceTypes(); len(list) > 0 {
		spec.InstanceTypes = slices.Clone(list)
	}
	if list := req.GetLoadBalancers(); len(list) > 0 {
		spec.LoadBalancers = slices.Clone(list)
	}
	if req.GetSetVars() {
		spec.Vars = maps.Clone(req.GetVars())
	}
	if req.GetArgsJson() != "" {
		spec.Args = u.args
	}
	if u.rollout != nil {
		rollout := *u.rollout
		spec.Rollout = &rollout
	}
	if u.disruption != nil {
		disruption := *u.disruption
		disruption.Windows = slices.Clone(disruption.Windows)
		spec.Disruption = &disruption
	}
	if u.purchase != nil {
		purchase := *u.purchase
		spec.Purchase = &purchase
	}
	if u.schedules != nil {
		spec.Schedules = slices.Clone(u.schedules)
	}
	if u.drain != nil {
		drain := *u.drain
		spec.DrainTimeout = &drain
	}
}

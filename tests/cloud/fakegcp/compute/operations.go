package compute

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakegcp/rest"
)

// Operation is a change in progress, or a finished one.
type Operation struct {
	id         uint64
	kind, user string
	target     *Resource
	began, due time.Time
	ended      time.Time // zero: running
	finish     func() error
	failure    *Failure
	message    string // of an operation of the service itself
	group      string // of the operations of a bulkInsert
	bulk       *bulk
}

// Failure is the error of an operation that failed after the call was accepted.
type Failure struct {
	Code, Message string
	// Status is the HTTP status in the operation. 0 means 400.
	Status int
}

func (f *Failure) Error() string { return f.Code + ": " + f.Message }

// Stockout returns the failure of a zone without room for a machine type.
func Stockout() *Failure {
	return &Failure{"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "The zone does not have enough resources available " +
		"to fulfill the request. '(resource type:compute)'.", http.StatusServiceUnavailable}
}

// QuotaExceeded returns the failure of a project that has used up a quota.
func QuotaExceeded(quota string) *Failure {
	return &Failure{"QUOTA_EXCEEDED", "Quota '" + quota + "' exceeded.  Limit: 24.0 in region us-central1.",
		http.StatusForbidden}
}

// Fault lets operations fail late.
type Fault struct {
	// Type is the type of the operations that fail, such as "insert". Collection is the collection of their resources.
	Type, Collection string
	// Matches chooses resources. Nil: all.
	Matches func(*Resource) bool
	Failure *Failure
	// Times is the number of operations that fail. 0 means all, until [Compute.Repair].
	Times int

	used int
}

// Fail adds a fault.
func (c *Compute) Fail(f Fault) { c.Do(func() { c.faults = append(c.faults, &f) }) }

// Repair removes all faults.
func (c *Compute) Repair() { c.Do(func() { c.faults = nil }) }

func (c *Compute) faultOf(op *Operation) *Failure {
	for _, f := range c.faults {
		if f.Type == op.kind && (f.Collection == "" || f.Collection == op.target.Collection) &&
			(f.Times == 0 || f.used < f.Times) && (f.Matches == nil || f.Matches(op.target)) {
			f.used++
			return f.Failure
		}
	}
	return nil
}

// Start starts an operation on a resource. The last part of method is the operation's type. When the operation ends,
// the fake calls finish, which may return a [*Failure]. If a [Fault] makes the operation fail, the fake calls undo
// instead. Both functions may be nil.
func (c *Compute) Start(method string, target *Resource, finish func() error, undo func()) *Operation {
	kind := method[strings.LastIndexByte(method, '.')+1:]
	c.lastID += 7919
	op := &Operation{id: c.lastID, kind: kind, target: target, began: c.Now(), due: c.Now().Add(c.Delay[kind])}
	op.finish = func() error {
		if failure := c.faultOf(op); failure != nil {
			if undo != nil {
				undo()
			}
			return failure
		}
		if finish == nil {
			return nil
		}
		return finish()
	}
	c.ops = append(c.ops, op)
	return op
}

// advance ends the operations that are due, and reconciles the managed groups. It then forgets old operations and
// requestIds.
func (c *Compute) advance() {
	now := c.Now()
	for _, op := range slices.Clone(c.ops) {
		if !op.ended.IsZero() || op.due.After(now) {
			continue
		}
		op.ended = now
		if err := op.finish(); err != nil && !errors.As(err, &op.failure) {
			op.failure = &Failure{Code: "INTERNAL_ERROR", Message: err.Error()}
		}
		op.finish = nil
	}
	c.reconcileGroups()
	c.ops = slices.DeleteFunc(c.ops, func(op *Operation) bool {
		return !op.ended.IsZero() && now.Sub(op.ended) > operationMemory
	})
	maps.DeleteFunc(c.requests, func(_ string, op *Operation) bool { return now.Sub(op.began) >= requestMemory })
}

func (op *Operation) name() string { return "operation-" + strconv.FormatUint(op.id, 10) }

func (op *Operation) describe() map[string]any {
	scope := op.target.scope()
	began := op.began.In(pacific).Format(time.RFC3339Nano)
	out := map[string]any{"kind": "compute#operation", "id": strconv.FormatUint(op.id, 10), "name": op.name(),
		"operationType": op.kind, "targetLink": op.target.Link(), "targetId": strconv.FormatUint(op.target.ID, 10),
		"user": op.user, "status": "RUNNING", "progress": 0, "insertTime": began, "startTime": began,
		"selfLink": base + scope + "/operations/" + op.name()}
	for _, level := range []string{"zones", "regions"} {
		if strings.Contains(scope, "/"+level+"/") {
			out[strings.TrimSuffix(level, "s")] = base + scope
		}
	}
	if !op.ended.IsZero() {
		out["status"], out["progress"], out["endTime"] = "DONE", 100, op.ended.In(pacific).Format(time.RFC3339Nano)
	}
	if op.group != "" {
		out["operationGroupId"] = op.group
	}
	if op.bulk != nil {
		out["instancesBulkInsertOperationMetadata"] = op.bulk.describe()
	}
	if op.kind == "bulkInsert" { // it has no target
		delete(out, "targetId")
		delete(out, "targetLink")
	}
	if op.message != "" {
		out["statusMessage"] = op.message
	}
	if f := op.failure; f != nil {
		out["error"] = map[string]any{"errors": []any{map[string]any{"code": f.Code, "message": f.Message}}}
		if out["httpErrorStatusCode"] = f.Status; f.Status == 0 {
			out["httpErrorStatusCode"] = http.StatusBadRequest
		}
		out["httpErrorMessage"] = f.Code
	}
	return out
}

// addOperations adds the methods of operations. Their wait methods answer immediately, as the real service may do.
func (c *Compute) addOperations() {
	for _, api := range []string{"zoneOperations", "regionOperations", "globalOperations"} {
		get := func(call *rest.Call) (any, error) {
			for _, op := range c.ops {
				if name := call.Params["operation"]; op.target.scope() == Scope(call) &&
					(op.name() == name || strconv.FormatUint(op.id, 10) == name) {
					return op.describe(), nil
				}
			}
			return nil, rest.NotFound("The resource '%s/operations/%s' was not found", Scope(call),
				call.Params["operation"])
		}
		c.Handle("compute."+api+".get", get)
		c.Handle("compute."+api+".wait", get)
		c.Handle("compute."+api+".list", func(call *rest.Call) (any, error) {
			var items []map[string]any
			for _, op := range c.ops {
				if op.target.scope() == Scope(call) {
					items = append(items, op.describe())
				}
			}
			return c.Page(call, "compute#operationList", items)
		})
	}
}

// Fingerprint returns the fingerprint of a part of a resource.
func Fingerprint(part any) string {
	text, err := json.Marshal(part)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return base64.StdEncoding.EncodeToString(sum[:8])
}

var labelKey, labelValue = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$`),
	regexp.MustCompile(`^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)

// checkLabels checks the labels in a body. https://cloud.google.com/compute/docs/labeling-resources#requirements
func checkLabels(body map[string]any) error {
	labels, _ := body["labels"].(map[string]any)
	if len(labels) > 64 {
		return Invalid("Invalid value for field 'resource.labels': too many labels")
	}
	for key, value := range labels {
		text, _ := value.(string)
		if !labelKey.MatchString(key) || len(key) > 128 || !labelValue.MatchString(text) || len(text) > 128 {
			return Invalid("Invalid value for field 'resource.labels': '{ %q: %q }'. Label keys and values must "+
				"contain only lowercase letters, digits, dashes and underscores", key, text)
		}
	}
	return nil
}

var comparison = regexp.MustCompile(`([\w.-]+)\s*(!=|=|\beq\b|\bne\b)\s*("[^"]*"|[^\s()]+)`)

// parseFilter parses a filter expression. It knows only the forms that programs in this repository use: comparisons
// joined by AND or by white space. https://cloud.google.com/compute/docs/reference/rest/v1/instances/list
func parseFilter(text string) (func(map[string]any) bool, error) {
	rest := comparison.ReplaceAllString(text, "")
	if rest = strings.ReplaceAll(rest, "AND", ""); strings.Trim(rest, " ()") != "" {
		return nil, Invalid("Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
	}
	terms := comparison.FindAllStringSubmatch(text, -1)
	for _, term := range terms {
		if _, err := regexp.Compile(strings.Trim(term[3], `"`)); err != nil && len(term[2]) == 2 && term[2] != "!=" {
			return nil, Invalid("Invalid value for field 'filter': '%s'. Invalid list filter expression.", text)
		}
	}
	return func(item map[string]any) bool {
		for _, term := range terms {
			want := strings.Trim(term[3], `"`)
			value := any(item)
			for _, name := range strings.SplitN(term[1], ".", 2) {
				object, _ := value.(map[string]any)
				value = object[name]
			}
			have := ""
			if value != nil {
				have = fmt.Sprint(value)
			}
			ok := have == want
			if term[2] == "eq" || term[2] == "ne" {
				ok = regexp.MustCompile("^(?:" + want + ")$").MatchString(have)
			}
			if ok != (term[2] == "=" || term[2] == "eq") {
				return false
			}
		}
		return true
	}, nil
}

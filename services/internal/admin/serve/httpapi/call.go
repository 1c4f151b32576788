package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
	"github.com/nstance-kit/nstance/services/internal/admin/support"
)

// invoke makes a call of the operator API with the request that the query and the body describe.
func (a *api) invoke(r route, method protoreflect.MethodDescriptor, c *call) (int, any, error) {
	request, err := r.parse(c)
	if err != nil {
		return 0, nil, err
	}
	c.detail = detailOf(request, r.body)
	create, _ := request.(*nstancev1.CreateInstanceRequest)
	if (r.oneShard || create.GetInstanceId() != "") && len(c.shards) != 1 {
		return 0, nil, badRequest("query: all_shards: this call is for one shard at a time")
	}
	if d, ok := request.(*nstancev1.DeleteInstanceRequest); ok && d.GetReason() == "" {
		d.Reason = "requested over HTTP by " + c.who
	}
	if c.dryRun {
		previews := a.Fleet.Explain(c.Context(), c.shards, request)
		return statusOf(previews), fleet.Answers[fleet.Preview]{Shards: previews}, nil
	}
	answers := a.Fleet.Invoke(c.Context(), c.shards, method, request)
	return statusOf(answers), fleet.Answers[fleet.Answer[proto.Message]]{Shards: answers}, nil
}

// parse returns the message that the query and the body of a request describe.
func (r route) parse(c *call) (proto.Message, error) {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(r.request.FullName())
	if err != nil {
		return nil, err
	}
	request := kind.New().Interface()
	query := c.URL.Query()
	for _, p := range r.query {
		if values, ok := query[p.name()]; ok {
			one := kind.New().Interface()
			if err := protojson.Unmarshal(p.json(values), one); err != nil {
				return nil, badRequest("query: %s: %v", p.name(), err)
			}
			proto.Merge(request, one)
		}
	}
	if r.method == http.MethodGet {
		return request, bounded(request.ProtoReflect(), nil)
	}
	body, err := c.read()
	switch {
	case err != nil:
		return nil, err
	case r.body == nil && len(body) > 0:
		err = protojson.Unmarshal(body, request)
	case r.body != nil:
		_, problems := config.ParsePatch("", body)
		if errs := problems.Errors(); len(errs) > 0 {
			err = errors.New(errs.Brief())
		}
		request.ProtoReflect().Set(r.body, protoreflect.ValueOfString(string(body)))
	}
	if err != nil {
		return nil, badRequest("body: %v", err)
	}
	return request, bounded(request.ProtoReflect(), r.body)
}

// json returns a message, as JSON, in which only the field of the parameter is set.
func (p parameter) json(values []string) []byte {
	var value any = values[0]
	switch field := p.field(); {
	case field.IsList():
		value = values
	case field.Kind() == protoreflect.BoolKind && (values[0] == "true" || values[0] == "false"):
		value = values[0] == "true"
	}
	for _, field := range slices.Backward(p) {
		value = map[string]any{string(field.Name()): value}
	}
	text, _ := json.Marshal(value) // encoding texts cannot fail
	return text
}

// read returns the body of a request, which must be JSON of at most maxBody bytes, or empty.
func (c *call) read() ([]byte, error) {
	body, err := io.ReadAll(c.Body)
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return nil, &refused{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes",
			tooLong.Limit)}
	case err != nil:
		return nil, badRequest("body: %v", err)
	case len(body) == 0:
		return nil, nil
	}
	if kind, _, err := mime.ParseMediaType(c.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, &refused{http.StatusUnsupportedMediaType, "the body must be JSON: Content-Type: application/json"}
	}
	return body, nil
}

// bounded checks the sizes of the fields of a request, except that of the body.
func bounded(m protoreflect.Message, body protoreflect.FieldDescriptor) (err error) {
	refuse := func(field protoreflect.FieldDescriptor, have int, what string, limit int) {
		if have > limit {
			err = badRequest("%s has %d %s, at most %d are allowed", field.Name(), have, what, limit)
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field == body:
		case field.IsMap():
			refuse(field, value.Map().Len(), "entries", maxMap)
			value.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				refuse(field, len(key.String()), "bytes in a name", maxText)
				return err == nil
			})
		case field.IsList():
			refuse(field, value.List().Len(), "entries", maxList)
			for i := range value.List().Len() {
				refuse(field, len(value.List().Get(i).String()), "bytes in an entry", maxText)
			}
		case fleet.IsMessage(field):
			err = bounded(value.Message(), body)
		case field.Kind() == protoreflect.StringKind:
			refuse(field, len(value.String()), "bytes", maxText)
		}
		return err == nil
	})
	return err
}

// detailOf describes a request for the log. It leaves out the values of variables, and what a support bundle hides of
// the body.
func detailOf(request proto.Message, body protoreflect.FieldDescriptor) string {
	m := request.ProtoReflect()
	parts := []string{strings.TrimSuffix(string(m.Descriptor().Name()), "Request")}
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		value := m.Get(field)
		if !m.Has(field) {
			continue
		}
		text := value.String()
		switch {
		case field == body:
			patch, _ := config.ParsePatch("", []byte(text))
			text = strings.Join(patch.Fields(), ",") + " " + support.Shown[config.GroupSpec]([]byte(text))
		case field.IsMap():
			var names []string
			value.Map().Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
				names = append(names, key.String())
				return true
			})
			text = strings.Join(slices.Sorted(slices.Values(names)), ",")
		case field.IsList():
			text = fmt.Sprint(value.List().Len())
		}
		parts = append(parts, string(field.Name())+"="+text)
	}
	return short(strings.Join(parts, " "))
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
	return StatusOf(failed[0].Code)
}

// problems describes the HTTP statuses of failed calls of shards.
var problems = map[int]string{
	400: "Refused by the shard, or the request is malformed.",
	403: "The shard's configuration does not permit the request, or the operator was removed.",
	404: "The shard does not have the group or instance, or there is no such shard.",
	409: "The request conflicts with the present state.",
	429: "The tenant's quota is used up, or the shard has too much to do.",
	502: "One or more of several shards failed, or the shard refuses the certificate of this server.",
	503: "The shard cannot be reached.",
	504: "The shard did not answer in time.",
}

// StatusOf returns the HTTP status for the error of a call.
func StatusOf(code codes.Code) int {
	switch code {
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

const (
	// maxFollowers is the limit of concurrent requests that stream events.
	maxFollowers = 32
	// pulse is the time between two empty lines, which the API sends to find out whether the client still reads.
	pulse = 15 * time.Second
	// lineTime limits the time to send one line.
	lineTime = 10 * time.Second
)

// Connection is a line of GET /events/follow about the connection to a shard. With an error, the events of the shard
// cannot be followed, and the server tries again unless the response ends. Without one, they are followed again.
type Connection struct {
	fleet.Outcome
	Connected bool `json:"connected"`
}

// followEvents sends the events of the shards' journals that a FollowEventsRequest selects.
func (a *api) followEvents(c *call, request proto.Message, send func(any)) {
	r := request.(*nstancev1.FollowEventsRequest)
	after := map[string]string{}
	for _, shard := range c.shards {
		after[shard] = r.GetAfter()
	}
	a.Fleet.FollowJournals(c.Context(), c.shards, r.GetFilter(), after, fleet.Watcher{
		Lost: func(err *fleet.Error, _ time.Duration) {
			send(Connection{Outcome: fleet.Outcome{Shard: err.Shard, Err: err}})
		},
		Found: func(shard string) { send(Connection{fleet.Outcome{Shard: shard}, true}) },
	}, func(e fleet.Entry) { send(e) })
}

// serveFollow calls the route's follow function and streams the values that this function sends. It ends when the
// client disconnects or stops reading, or when the server stops.
func (a *api) serveFollow(w http.ResponseWriter, r route, c *call) error {
	request, err := r.parse(c)
	if err != nil {
		return err
	}
	if f, ok := request.(*nstancev1.FollowEventsRequest); ok && f.GetAfter() != "" && len(c.shards) != 1 {
		return badRequest("query: after: is a position in the journal of one shard: name the shard")
	}
	select {
	case a.followers <- struct{}{}:
		defer func() { <-a.followers }()
	default:
		return &refused{http.StatusServiceUnavailable, fmt.Sprintf(
			"%d clients follow something already; try again later", maxFollowers)}
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	c.Request = c.WithContext(ctx)
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // fails only without a connection, in tests
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines, ended := make(chan []byte), make(chan struct{})
	go func() {
		defer close(ended)
		r.follow(c, request, func(value any) {
			line, err := json.Marshal(value)
			if err != nil {
				panic("httpapi: a followed value cannot be written as JSON: " + err.Error())
			}
			select {
			case lines <- line:
			case <-ctx.Done():
			}
		})
	}()
	write := func(line []byte) {
		_ = control.SetWriteDeadline(time.Now().Add(lineTime)) // as above
		if _, err := w.Write(append(line, '\n')); err != nil || control.Flush() != nil {
			cancel()
		}
	}
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return nil
		case line := <-lines:
			write(line)
		case <-ticker.C:
			write(nil)
		case <-a.Ended:
			cancel()
			<-ended
			return nil
		}
	}
}

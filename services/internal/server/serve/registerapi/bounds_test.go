package registerapi_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestEveryFieldOfARegistrationIsBounded sends each registration with one field that is much too large, for every
// field. A field of 130 KiB is refused before the leader does anything. A field of 15 KiB, which fits into a message,
// reaches neither the bucket nor the journal, the log or the state, although it may be ignored.
func TestEveryFieldOfARegistrationIsBounded(t *testing.T) {
	const most = 2048 // bytes of a log line, an error, a record or a reason
	methods := nstancev1.File_nstance_v1_registration_proto.Services().ByName("RegistrationService").Methods()
	checked := 0
	for i := range methods.Len() {
		method := methods.Get(i)
		for _, size := range []int{15 << 10, 130 << 10} {
			fields := method.Input().Fields()
			if fields.ByName("nonce") == nil || fields.ByName("public_key") == nil {
				t.Fatalf("%s has no nonce and key", method.Name())
			}
			w, logs := newTestLeader(t), &transporttest.Logs{}
			w.service.Log = logs.Logger()
			conn := w.Dial(t, w.addr, nil)
			valid := func() (proto.Message, ident.ID) {
				var id ident.ID
				var req proto.Message
				if method.Name() == "RegisterOperator" {
					nonce, operator := w.operatorNonce(t)
					id, req = operator, &nstancev1.RegisterOperatorRequest{Nonce: nonce}
				} else {
					id = w.Created(t)
					req = &nstancev1.RegisterAgentRequest{Nonce: w.nonce(t, id, nil)}
				}
				req.ProtoReflect().Set(fields.ByName("public_key"),
					protoreflect.ValueOfBytes(transporttest.Public(transporttest.NewKey(t))))
				return req, id
			}
			base, _ := valid()
			transporttest.Sized(base, size, func(field string, huge proto.Message) {
				checked++
				req, id := valid() // each instance registers once
				req.ProtoReflect().Set(fields.ByName(protoreflect.Name(field)),
					huge.ProtoReflect().Get(fields.ByName(protoreflect.Name(field))))
				var requests, written atomic.Int64
				w.Fault(func(r mem.Request) mem.Fault {
					requests.Add(1)
					if n := int64(len(r.Body)); n > written.Load() {
						written.Store(n)
					}
					return mem.Fault{}
				})
				err := transporttest.Invoke(t.Context(), conn, method, req)
				w.Fault(nil)
				what := fmt.Sprintf("%s with %d KiB as %s", method.Name(), size>>10, field)
				if text := fmt.Sprint(err); len(text) > most {
					t.Errorf("%s: %.300s", what, text)
				}
				if size > 100<<10 && (status.Code(err) != codes.ResourceExhausted || requests.Load() > 0) {
					t.Errorf("%s: %.300v, %d requests to the bucket", what, err, requests.Load())
				}
				if needed := field == "nonce" || field == "public_key"; needed && (err == nil || requests.Load() > 0) {
					t.Errorf("%s: %.300v, %d requests to the bucket", what, err, requests.Load())
				}
				if written.Load() > most {
					t.Errorf("%s: wrote %d bytes", what, written.Load())
				}
				if view, _ := w.State.Instance(id); len(view.Plan.Refused) > most {
					t.Errorf("%s: the leader knows the refusal as %.300q", what, view.Plan.Refused)
				}
			})
			for _, line := range logs.Lines() {
				if len(line) > most {
					t.Errorf("%s: a line in the log: %.300s", method.Name(), line)
				}
			}
			for _, event := range w.journal() {
				if len(event.Message) > most {
					t.Errorf("%s: an event: %.300s", method.Name(), event.Message)
				}
			}
		}
	}
	if checked < 16 {
		t.Errorf("%d fields were checked", checked)
	}
}

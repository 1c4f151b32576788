package agentapi_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// TestEveryFieldOfARequestIsBounded sends each request of an agent with one field that is much too large, for every
// field. Each is refused, the error names the field, and the leader learns nothing from the request.
func TestEveryFieldOfARequestIsBounded(t *testing.T) {
	w := newTestLeader(t)
	methods := nstancev1.File_nstance_v1_agent_proto.Services().ByName("AgentService").Methods()
	checked := 0
	for i := range methods.Len() {
		method := methods.Get(i)
		bases := map[string]proto.Message{
			"KeyGenRequests": &nstancev1.KeyGenRequestsRequest{InstanceId: "ID"},
			"SubmitPublicKeys": &nstancev1.SubmitPublicKeysRequest{InstanceId: "ID",
				Keys: []*nstancev1.PublicKey{{Name: "node.pub"}}},
			"ReceiveFiles": &nstancev1.ReceiveFilesRequest{InstanceId: "ID", WithHealthChecks: true,
				WithDrain: true},
			"ReportHealth": &nstancev1.ReportHealthRequest{InstanceId: "ID", Sequence: 1,
				Files: []*nstancev1.FileState{{Name: "a", Error: "x"}},
				Keys:  []*nstancev1.KeyState{{Name: "a", Error: "x"}},
				HealthChecks: &nstancev1.HealthCheckReport{States: []*nstancev1.HealthCheckState{{Name: "a",
					Status: nstancev1.HealthCheckState_STATUS_PASSING}}}},
			"RenewCertificate": &nstancev1.AgentServiceRenewCertificateRequest{InstanceId: "ID"},
		}
		transporttest.Oversized(bases[string(method.Name())], func(field string, req proto.Message) {
			checked++
			c := w.agent(t) // each agent has a limit of bytes
			id := req.ProtoReflect().Descriptor().Fields().ByName("instance_id")
			if field != "instance_id" {
				req.ProtoReflect().Set(id, protoreflect.ValueOfString(c.id.String()))
			}
			err := transporttest.Invoke(t.Context(), c.conn, method, req)
			want := codes.InvalidArgument
			if field == "instance_id" {
				want = codes.PermissionDenied
			}
			if text := fmt.Sprint(err); status.Code(err) != want || !strings.Contains(text, field) || len(text) > 2048 {
				t.Errorf("%s with a huge %s: %.300s", method.Name(), field, text)
			}
			if view, _ := w.State.Instance(c.id); !view.Plan.LastReport.IsZero() {
				t.Errorf("%s with a huge %s: a report was taken", method.Name(), field)
			}
		})
	}
	if checked < 20 {
		t.Errorf("%d fields were checked", checked)
	}
}

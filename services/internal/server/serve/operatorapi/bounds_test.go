package operatorapi_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// TestEveryFieldOfARequestIsBounded sends each request of the API with one field that is much too large, for every
// field. Each is refused as invalid and names the field, before the server asks the bucket anything.
func TestEveryFieldOfARequestIsBounded(t *testing.T) {
	w := newTestShardOf(t, sharedDocument)
	id := w.NewID(t, "knd").String()
	bases := map[string]proto.Message{
		"UpsertGroup":      upsertOf("new", `{"template": "shared"}`),
		"DeleteGroup":      &nstancev1.DeleteGroupRequest{Group: "vault"},
		"CreateInstance":   &nstancev1.CreateInstanceRequest{Group: "vault"},
		"DeleteInstance":   &nstancev1.DeleteInstanceRequest{InstanceId: id},
		"RenewCertificate": &nstancev1.OperatorServiceRenewCertificateRequest{},
	}
	var requests atomic.Int64
	services := nstancev1.File_nstance_v1_operator_proto.Services()
	methods := services.ByName("OperatorService").Methods()
	checked := 0
	for i := range methods.Len() {
		method := methods.Get(i)
		if method.Name() == "ExplainChange" {
			continue // its fields are requests of other methods, which check them
		}
		base := bases[string(method.Name())]
		if base == nil {
			base = dynamicpb.NewMessage(method.Input())
		}
		conn := w.Dial(t, w.Serve(t, authority.RoleOperator, func(s *grpc.Server) {
			w.service.Register(s)
		}), w.certificateAs(t, "ada", record.RoleAdmin))
		// The first call makes the server read the operator's record.
		if _, err := nstancev1.NewOperatorServiceClient(conn).ListGroups(t.Context(),
			&nstancev1.ListGroupsRequest{}); err != nil {
			t.Fatal(err)
		}
		w.breakStore(func(mem.Request) mem.Fault { requests.Add(1); return mem.Fault{} })
		transporttest.Oversized(base, func(field string, req proto.Message) {
			checked++
			before := requests.Load()
			err := transporttest.Invoke(t.Context(), conn, method, req)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), field) ||
				len(err.Error()) > 2048 {
				text := fmt.Sprint(err)
				t.Errorf("%s with a huge %s: %.300s", method.Name(), field, text)
			}
			if asked := requests.Load() - before; asked > 0 {
				t.Errorf("%s with a huge %s: %d requests to the bucket", method.Name(), field, asked)
			}
		})
		w.breakStore(nil)
	}
	if checked < 30 {
		t.Errorf("%d fields were checked", checked)
	}
}

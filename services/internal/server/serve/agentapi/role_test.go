package agentapi_test

import (
	"testing"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/plan"
	"github.com/nstance-kit/nstance/services/internal/server/serve/registerapi/leadertest"
)

func (c *client) roleStream() filesStream {
	c.t.Helper()
	stream, err := c.ReceiveFiles(c.t.Context(), &nstancev1.ReceiveFilesRequest{InstanceId: c.id.String(),
		WithRole: true})
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

func (c *client) wantRole(stream filesStream, want nstancev1.InstanceRole) {
	c.t.Helper()
	for {
		message, err := stream.Recv()
		switch role := message.GetRole(); {
		case err != nil:
			c.t.Fatal(err)
		case role == nil: // a file
		case role.GetRole() != want:
			c.t.Fatalf("%v, want %v", role, want)
		default:
			return
		}
	}
}

// TestRoleIsSent checks when an agent is told its role: at the begin of each stream, and when the instance becomes a
// member, also if the leader learns that only from the bucket.
func TestRoleIsSent(t *testing.T) {
	const spare, member = nstancev1.InstanceRole_INSTANCE_ROLE_SPARE, nstancev1.InstanceRole_INSTANCE_ROLE_MEMBER
	w := newTestLeader(t)
	w.Executor.Files = w.service
	c := w.agent(t)
	c.wantRole(c.roleStream(), member)

	c = w.agent(t)
	w.Change(t, c.id, func(r *record.Instance) { r.Spare = &record.Spare{} })
	stream := c.roleStream()
	c.wantRole(stream, spare)
	if !w.State.Plan(plan.Action{Kind: plan.Promote, Instance: c.id}, plan.Promoting) {
		t.Fatal("the instance is busy")
	}
	w.Executor.Do(t.Context(), leadertest.Group, plan.Action{Kind: plan.Promote, Instance: c.id,
		Reason: "its VM is gone", Rule: 78})
	c.wantRole(stream, member)
	again := c.again()
	again.wantRole(again.roleStream(), member)

	late := w.agent(t)
	w.Change(t, late.id, func(r *record.Instance) { r.Spare = &record.Spare{} })
	stream = late.roleStream()
	late.wantRole(stream, spare)
	w.Change(t, late.id, func(r *record.Instance) { r.Spare = &record.Spare{PromotedAt: w.Clock.Now()} })
	late.reports().send(func(r *nstancev1.ReportHealthRequest) { r.Role = spare })
	late.wantRole(stream, member)
}

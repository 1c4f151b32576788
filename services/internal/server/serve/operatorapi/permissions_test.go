package operatorapi_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/serve/transport/transporttest"
)

// sharedDocument configures a shard of two tenants. Only the tenant "prod" may use the template "vault". Operators of
// both tenants may use the template "shared", for groups of at most 4 instances. They may set one argument and choose
// an instance type from t4g.*. The tenant "rival" may have 2 groups and 6 instances.
const sharedDocument = `{
  "cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
  "server": {"shard": "a", "provider": {"kind": "aws", "region": "us-east-1", "zone": "us-east-1a"},
             "subnet_pools": {"p": ["subnet-1"], "control": ["subnet-2"]}},
  "tenants": {"prod": {}, "rival": {"max_groups": 2, "max_instances": 6}},
  "load_balancers": {"www": {"provider": "aws", "target_group_arns": ["arn:aws:elasticloadbalancing:us-east-1:111122223333:targetgroup/www/1"]}},
  "certificates": {"host": {"kind": "server", "cn": "{{ .Vars.host }}", "ttl": 24}},
  "templates": {
    "vault": {"kind": "knv", "arch": "arm64", "subnet_pool": "p", "instance_type": "t4g.nano", "args": {"ImageId": "ami-1"},
              "files": {"token.key": {"kind": "secret", "source": "prod-token"}}},
    "shared": {"kind": "knd", "arch": "arm64", "subnet_pool": "p", "instance_type": "t4g.nano",
               "vars": {"profile": "web", "host": "web", "path": "web.json", "greeting": "hello"},
               "args": {"ImageId": "ami-1", "IamInstanceProfile": {"Name": "{{ .Vars.profile }}"}, "SecurityGroupIds": ["sg-1"],
                        "MetadataOptions": {"HttpTokens": "required"}, "BlockDeviceMappings": [{"DeviceName": "/dev/xvda"}]},
               "files": {"host.crt": {"kind": "certificate", "template": "host", "key": {"source": "agent", "name": "host.pub"}},
                         "web.json": {"kind": "storage", "source": "files/{{ .Vars.path }}"},
                         "app.env": {"kind": "env", "vars": {"GREETING": "{{ .Vars.greeting }}"}}},
               "tenants": ["prod", "rival"],
               "dynamic": {"args": ["/MetadataOptions/HttpPutResponseHopLimit"], "instance_types": ["t4g.*"], "max_size": 4}}},
  "groups": {"prod": {"vault": {"template": "vault", "size": 0}}, "rival": {"theirs": {"template": "shared", "size": 0}}}
}`

// logBuffer collects the lines of a JSON log. It is safe for concurrent use.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// takeRefusals returns the refusals that were logged since the previous call of takeRefusals.
func (b *logBuffer) takeRefusals(t testing.TB) (refusals []map[string]any) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(b.text.String()) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if entry["msg"] == "operator's request refused" {
			refusals = append(refusals, entry)
		}
	}
	b.text.Reset()
	return refusals
}

// TestHostileOperator sends requests by which a tenant's operator may try to exceed its permissions. They ask for
// another tenant's data, for cloud resources outside its template, and for more than its quotas. Each request is
// refused and logged once. The error says which field is wrong and what to do. No request changes anything.
func TestHostileOperator(t *testing.T) {
	var logs logBuffer
	w := newLoggedTestShard(t, sharedDocument, slog.New(slog.NewJSONHandler(&logs, nil)))
	id := w.NewID(t, "opr")
	rival := w.dialPort(t, w.operator(t, "rival", id, transporttest.NewKey(t)))
	vault := w.group(t, "vault")

	refused := func(name string, err error, code codes.Code, group, field string) {
		t.Helper()
		wants(t, name, err, code, field+": ")
		entries := logs.takeRefusals(t)
		if len(entries) != 1 {
			t.Errorf("%s: %d log entries, want one: %v", name, len(entries), entries)
			return
		}
		wanted := map[string]string{"level": "WARN", "tenant": "rival", "operator": id.String(), "source": "127.0.0.1"}
		switch code {
		case codes.NotFound:
			wanted["level"] = "INFO"
		case codes.PermissionDenied, codes.ResourceExhausted:
			wants(t, name, err, code, "group "+group+" is not permitted", "in the shard's configuration")
			fallthrough
		case codes.FailedPrecondition:
			wanted["group"], wanted["field"] = group, field
		default:
		}
		if reason, _ := entries[0]["reason"].(string); !strings.Contains(reason, field) &&
			!strings.Contains(err.Error(), reason) {
			t.Errorf("%s: the log entry's reason is %q, the error is %v", name, reason, err)
		}
		for key, want := range wanted {
			if entries[0][key] != want {
				t.Errorf("%s: the log entry's %s is %q, want %q", name, key, entries[0][key], want)
			}
		}
	}
	args := func(text string) *nstancev1.UpsertGroupRequest {
		return &nstancev1.UpsertGroupRequest{Group: "new", Patch: `{"template": "shared", "args": ` + text + `}`}
	}
	vars := func(name, value string) *nstancev1.UpsertGroupRequest {
		return &nstancev1.UpsertGroupRequest{Group: "new",
			Patch: fmt.Sprintf(`{"template": "shared", "vars": {%q: %q}}`, name, value)}
	}
	for _, test := range []struct {
		name  string
		req   *nstancev1.UpsertGroupRequest
		field string
		code  codes.Code // PermissionDenied, if zero
	}{
		{"another tenant's template", upsertOf("new", `{"template": "vault"}`), "template", 0},
		{"another tenant's group", upsertOf("vault", `{"template": "vault"}`), "template", 0},
		{"another tenant's template for a configured group", upsertOf("theirs", `{"template": "vault"}`), "template",
			codes.FailedPrecondition},
		{"arguments of a configured group", upsertOf("theirs", `{"args": {"ImageId": "ami-2"}}`), "args",
			codes.FailedPrecondition},
		{"a stored object of another tenant", vars("path", "prod/token.json"), "vars.path", 0},
		{"a certificate for another host", vars("host", "vault.prod"), "vars.host", 0},
		{"an instance profile through a variable", vars("profile", "admin"), "vars.profile", 0},

		{"image", args(`{"ImageId": "ami-2"}`), "args.ImageId", 0},
		{"image, with an escaped name", args(`{"\u0049mageId": "ami-2"}`), "args.ImageId", 0},
		{"snapshot", args(`{"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"SnapshotId": "snap-1"}}]}`),
			"args.BlockDeviceMappings", 0},
		{"security group", args(`{"SecurityGroupIds": ["sg-2"]}`), "args.SecurityGroupIds", 0},
		{"key pair", args(`{"KeyName": "prod"}`), "args.KeyName", 0},
		{"second interface",
			args(`{"NetworkInterfaces": [{"DeviceIndex": 0}, {"DeviceIndex": 1, "SubnetId": "subnet-9"}]}`),
			"args.NetworkInterfaces", 0},
		{"subnet", args(`{"SubnetId": "subnet-9"}`), "args.SubnetId", 0},
		{"instance profile", args(`{"IamInstanceProfile": {"Name": "admin"}}`), "args.IamInstanceProfile", 0},
		{"launch template", args(`{"LaunchTemplate": {"LaunchTemplateName": "prod"}}`), "args.LaunchTemplate", 0},
		{"user data", args(`{"UserData": "IyEvYmluL3NoCg=="}`), "args.UserData", 0},
		{"tags",
			args(`{"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "nstance:tenant", "Value": "prod"}]}]}`),
			"args.TagSpecifications", 0},

		{"beside a permitted argument",
			args(`{"MetadataOptions": {"HttpPutResponseHopLimit": 1, "HttpTokens": "optional"}}`),
			"args.MetadataOptions.HttpTokens", 0},
		{"an empty object above a permitted argument", args(`{"MetadataOptions": {}}`), "args.MetadataOptions", 0},
		{"a list above a permitted argument", args(`{"MetadataOptions": [{"HttpPutResponseHopLimit": 1}]}`),
			"args.MetadataOptions", 0},
		{"an index instead of a list", args(`{"BlockDeviceMappings": {"0": {"Ebs": {"SnapshotId": "snap-1"}}}}`),
			"args.BlockDeviceMappings", 0},
		{"another case", args(`{"metadataoptions": {"HttpPutResponseHopLimit": 1}}`), "args.metadataoptions", 0},
		{"another case below", args(`{"MetadataOptions": {"httpPutResponseHopLimit": 1}}`),
			"args.MetadataOptions.httpPutResponseHopLimit", 0},
		{"a pointer as the name", args(`{"/MetadataOptions/HttpPutResponseHopLimit": 1}`),
			`args["/MetadataOptions/HttpPutResponseHopLimit"]`, 0},
		{"an escaped pointer as the name", args(`{"MetadataOptions~1HttpPutResponseHopLimit": 1}`),
			`args["MetadataOptions~1HttpPutResponseHopLimit"]`, 0},
		{"a path as the name", args(`{"MetadataOptions.HttpPutResponseHopLimit": 1}`),
			`args["MetadataOptions.HttpPutResponseHopLimit"]`, 0},
		{"the same name twice",
			args(`{"MetadataOptions": {"HttpPutResponseHopLimit": 1}, "MetadataOptions": {"HttpTokens": "optional"}}`),
			"args.MetadataOptions", codes.InvalidArgument},

		{"size", upsertOf("new", `{"template": "shared", "size": 5}`), "size", 0},
		{"size of a configured group", upsertOf("theirs", `{"size": 5}`), "size", 0},
		{"huge size", upsertOf("new", `{"template": "shared", "size": 4294967295}`), "size",
			codes.InvalidArgument},
		{"instance type", upsertOf("new", `{"template": "shared", "instance_type": "u-24tb1.metal"}`),
			"instance_type", 0},
		{"second instance type", upsertOf("new", `{"template": "shared", "instance_types": ["t4g.small", "p5.48xlarge"]}`), "instance_types[1]", 0},
		{"instance type of a configured group", upsertOf("theirs", `{"instance_type": "p5.48xlarge"}`),
			"instance_type", 0},
		{"subnet pool", upsertOf("new", `{"template": "shared", "subnet_pool": "control"}`),
			"subnet_pool", 0},
		{"load balancer", upsertOf("new", `{"template": "shared", "load_balancers": ["www"]}`),
			"load_balancers[0]", 0},
	} {
		_, err := rival.UpsertGroup(t.Context(), test.req)
		code := test.code
		if code == 0 {
			code = codes.PermissionDenied
		}
		refused(test.name, err, code, test.req.GetGroup(), test.field)
	}
	_, err := rival.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "vault"})
	refused("an instance of another tenant's group", err, codes.NotFound, "vault", "group")
	for name, ask := range map[string]func() error{
		"deletion": func() error {
			_, err := rival.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Group: "vault"})
			return err
		},
		"pause": func() error {
			_, err := rival.PauseGroup(t.Context(), &nstancev1.PauseGroupRequest{Group: "vault"})
			return err
		},
		"end of a pause": func() error {
			_, err := rival.ResumeGroup(t.Context(), &nstancev1.ResumeGroupRequest{Group: "vault"})
			return err
		},
		"roll": func() error {
			_, err := rival.RollGroup(t.Context(), &nstancev1.RollGroupRequest{Group: "vault"})
			return err
		},
		"explanation": func() error {
			_, err := rival.ExplainGroup(t.Context(), &nstancev1.ExplainGroupRequest{Group: "vault"})
			return err
		},
		"rehearsed roll": func() error {
			_, err := rival.ExplainChange(t.Context(), &nstancev1.ExplainChangeRequest{
				Change: &nstancev1.ExplainChangeRequest_RollGroup{
					RollGroup: &nstancev1.RollGroupRequest{Group: "vault"}}})
			return err
		},
	} {
		refused(name+" of another tenant's group", ask(), codes.NotFound, "vault", "group")
	}
	_, err = rival.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "theirs",
		InstanceType: "p5.48xlarge"})
	refused("type of an instance", err, codes.PermissionDenied, "theirs", "instance_type")
	_, err = rival.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "theirs",
		Vars: map[string]string{"path": "prod/token.json"}})
	refused("variables of an instance", err, codes.PermissionDenied, "theirs", "vars.path")
	events, err := rival.FollowEvents(t.Context(), &nstancev1.FollowEventsRequest{
		Filter: &nstancev1.EventFilter{Kinds: []string{"secrets"}}})
	if err == nil {
		_, err = events.Recv()
	}
	refused("events of a kind that does not exist", err, codes.InvalidArgument, "", "filter.kinds")
	if groups, _, _, err := w.state.ReadGroups(t.Context()); err == nil && len(groups.Tenants) > 0 {
		t.Errorf("a refused request was stored: %v", groups.Tenants)
	}

	// Permitted requests succeed, up to the quotas. If another tenant has a group with the same name, that group is not
	// affected.
	upsert := func(group string, size uint32) error {
		_, err := rival.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Group: group, Patch: fmt.Sprintf(`{"template": "shared",
			"size": %d, "instance_type": "t4g.small", "vars": {"greeting": "hi"},
			"args": {"MetadataOptions": {"HttpPutResponseHopLimit": 1}}}`, size)})
		return err
	}
	create := func() error {
		_, err := rival.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{Group: "theirs",
			InstanceType: "t4g.small", Vars: map[string]string{"greeting": "hi"}})
		return err
	}
	for name, err := range map[string]error{"first group": upsert("vault", 4), "second group": upsert("other", 1),
		"on-demand instance": create()} {
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	refused("a third group", upsert("third", 0), codes.ResourceExhausted, "third", "group")
	refused("a seventh instance", upsert("other", 2), codes.ResourceExhausted, "other", "size")
	refused("a seventh instance on demand", create(), codes.ResourceExhausted, "theirs", "size")
	_, err = rival.UpsertGroup(t.Context(), upsertOf("theirs", `{"size": 1}`))
	refused("a seventh instance of a configured group", err, codes.ResourceExhausted, "theirs", "size")
	if err := upsert("vault", 3); err != nil {
		t.Errorf("shrinking: %v", err)
	}
	if err := upsert("other", 2); err != nil {
		t.Errorf("growing to the quota: %v", err)
	}
	if now := w.group(t, "vault"); now.GetEtag() != vault.GetEtag() || settingsOf(now).Template != "vault" {
		t.Errorf("the other tenant's group has changed: %v", now)
	}
}

// TestHostileRefusalsDoNotFillTheLog checks that a server logs only some of many refusals within a moment.
func TestHostileRefusalsDoNotFillTheLog(t *testing.T) {
	var logs logBuffer
	w := newLoggedTestShard(t, sharedDocument, slog.New(slog.NewJSONHandler(&logs, nil)))
	rival := w.dialPort(t, w.operator(t, "rival", w.NewID(t, "opr"), transporttest.NewKey(t)))
	for range 300 {
		if _, err := rival.UpsertGroup(t.Context(), upsertOf("new", `{"template": "vault"}`)); err == nil {
			t.Fatal("another tenant's template was accepted")
		}
	}
	if n := len(logs.takeRefusals(t)); n < 50 || n > 250 {
		t.Errorf("300 refusals in a moment are %d lines, want about 100", n)
	}
}

// TestRefusedRolesAreLogged checks that the log has an entry for a viewer that tries to change something.
func TestRefusedRolesAreLogged(t *testing.T) {
	var logs logBuffer
	w := newLoggedTestShard(t, sharedDocument, slog.New(slog.NewJSONHandler(&logs, nil)))
	_, err := w.as(t, "vera", record.RoleViewer).PauseGroup(t.Context(), &nstancev1.PauseGroupRequest{Group: "vault"})
	wants(t, "a viewer's change", err, codes.PermissionDenied, "PauseGroup needs the role operator")
	entries := logs.takeRefusals(t)
	if len(entries) != 1 || entries[0]["tenant"] != "prod" || entries[0]["call"] != "PauseGroup" {
		t.Errorf("log entries %v, want one with the tenant and the call", entries)
	}
}

// dialPort returns a client that calls the operators' port over TCP.
func (f *testShard) dialPort(t testing.TB, cert *tls.Certificate) nstancev1.OperatorServiceClient {
	t.Helper()
	return nstancev1.NewOperatorServiceClient(f.Dial(t, f.Serve(t, authority.RoleOperator, func(s *grpc.Server) {
		f.service.Register(s)
	}), cert))
}

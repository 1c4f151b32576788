package admin

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

var update = flag.Bool("update", false, "write generated and golden files instead of comparing them")

// golden compares a text with a golden file. With -update it writes the file instead.
func golden(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("%s (-file +now; -update writes it):\n%s", path, diff)
	}
}

// terminalless runs command lines without a terminal, as a script does.
type terminalless struct {
	env   map[string]string
	stdin string
	ctx   context.Context // nil: the test's context
	later time.Duration   // time after fleettest.Now
	rand  byte
}

// run runs a command line, and returns its outputs and its exit code.
func (c terminalless) run(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	ctx := c.ctx
	if ctx == nil {
		ctx = t.Context()
	}
	code = Run(ctx, args, "1.2.3", Environment{
		Stdin: strings.NewReader(c.stdin), Stdout: &out, Stderr: &errs,
		Getenv: func(name string) string {
			return c.env[name]
		}, Now: func() time.Time { return fleettest.Now.Add(c.later) },
		Rand: fleettest.Rand(c.rand),
	})
	return out.String(), errs.String(), code
}

// must runs a command line that must succeed, and returns its standard output.
func (c terminalless) must(t *testing.T, args ...string) string {
	t.Helper()
	stdout, stderr, code := c.run(t, args...)
	if code != exitOK {
		t.Fatalf("%s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// transcript returns a command line, its outputs and its exit code in the format of the golden files.
func (c terminalless) transcript(t *testing.T, replace *strings.Replacer, args ...string) string {
	t.Helper()
	stdout, stderr, code := c.run(t, args...)
	return replace.Replace(fmt.Sprintf("$ nstance-admin %s\n%s--- stderr\n%s--- exit code %d\n",
		strings.Join(args, " "), stdout, stderr, code))
}

const month = 30 * 24 * time.Hour

const (
	firstID  = "wrk06gx5zsg2nrrqcrz0000000000"
	secondID = "wrk06gx5zsg2nrrqcrz0000000008"
)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(fleettest.Now.Add(-d)) }

// fixture returns a fake shard with a static group, a dynamic group, and instances.
func fixture(shard string) *fleettest.Shard {
	return &fleettest.Shard{
		Config: &nstancev1.GetConfigStatusResponse{
			Etag: "c0ffee", LastModified: ago(time.Hour), Size: 4301, Generation: 2, Shard: shard, LeaderId: shard +
				"-server", Term: 7, ClusterId: "example",
		},
		Status: &nstancev1.GetShardStatusResponse{Shard: shard, ClusterId: "example", LeaderId: shard + "-server",
			Version: "v1.2.3", Term: 7, LeaderSince: ago(time.Hour), LeaseLeft: durationpb.New(80 * time.Second),
			HeirId: shard + "-heir", StandbyIds: []string{shard + "-heir", shard + "-third"}, ConfigEtag: "c0ffee",
			Groups: 2, Instances: 3, AgentsConnected: 2},
		Refresh: &nstancev1.RefreshConfigResponse{Result: nstancev1.RefreshResult_REFRESH_RESULT_UPDATED,
			Etag: "c0ffef"},
		Groups: []*nstancev1.GroupStatus{
			{
				Group: "workers", IsStatic: true, Overridden: true, Size: 3, ActualSize: 2,
				Healthy: 1, Etag: "etag-1", ProviderIds: []string{"i-1", "i-2"},
				BlockedReason: "no capacity for t4g.medium", BlockedSince: ago(5 * time.Minute), RuntimeHash: "aaaa",
				Wait:      waiting,
				InfraHash: "bbbb", Kind: "wrk", Arch: "arm64", InstanceIds: []string{firstID, secondID},
				MergedJson: `{"template": "worker", "size": 3, "instance_type": "t4g.medium", "instance_types": ["t4g.large"],
					"subnet_pool": "local", "vars": {"a": "1", "b": "2"}, "args": {"Tags": {"k": "v"}, "Ports": [80]},
					"load_balancers": ["www"], "drain_timeout": "5m", "max_surge": 1, "max_unhealthy": "40%",
					"rollout": {"paused": false, "canary": 1, "bake_time": "0s"}, "purchase": {"spot_percent": 0}, "schedules": []}`,
				Defaults: []string{"drain_timeout", "max_surge", "max_unhealthy", "purchase", "rollout.bake_time",
					"rollout.paused", "schedules"},
			},
			{Group: "batch", MergedJson: `{"template": "worker"}`, Etag: "etag-2", Kind: "wrk", Deleting: true},
		},
		Instances: []*nstancev1.InstanceStatus{
			{
				InstanceId: secondID, Group: "workers", Template: "worker", Kind: "wrk", State: "created",
				ProviderState: "pending", ProviderId: "i-2", Health: "unregistered",
				InstanceType: "t4g.medium", CreatedAt: ago(30 * time.Second), LaunchedAt: ago(29 * time.Second),
				Term: 7,
			},
			{
				InstanceId: firstID, Group: "workers", Template: "worker", Kind: "wrk", State: "registered",
				ProviderState: "running", ProviderId: "i-1", Health: "healthy",
				Ipv4: "10.0.0.7", Hostname: "ip-10-0-0-7", InstanceType: "t4g.medium", SubnetId: "subnet-a",
				CreatedAt: ago(50 * time.Hour), LaunchedAt: ago(50 * time.Hour),
				RegisteredAt: ago(49 * time.Hour), LastReportAt: ago(10 * time.Second), InfraDrift: true,
				CertificateNotAfter: timestamppb.New(fleettest.Now.Add(100 * time.Hour)),
				Image:               "ami-1", Term: 6, AgentVersion: "1.2.3", Zone: shard,
				Metrics: &nstancev1.Metrics{Cpu: 0.25, MemoryUsedBytes: 1 << 30, MemoryTotalBytes: 4 << 30},
			},
		},
		History: []*nstancev1.JournalEvent{
			{Position: "7-1", Term: 7, At: ago(time.Hour), Kind: "leader_started", Actor: "leader",
				Message: "server one, version 1.2.3"},
			{Position: "7-2", Term: 7, At: ago(time.Minute), Kind: "instance_lost", Group: "workers",
				InstanceId: firstID,
				Message:    "stream ended\x1b[2J", TookSeconds: 0.25},
			{Position: "7-3", Term: 7, At: ago(59 * time.Second), Kind: "instance_creating", Group: "workers",
				InstanceId: secondID,
				Replaces:   firstID, Actor: "leader", Message: "gone"},
		},
		Console: "booting\n",
		Explanations: map[string]*nstancev1.ExplainGroupResponse{
			"workers": {
				PlannedAt: ago(0), Term: 7, Desired: 3, BlockedReason: "backing off: no capacity for t4g.medium",
				Wait:       waiting,
				NextPlanAt: timestamppb.New(fleettest.Now.Add(4 * time.Second)), UnhealthyGuard: true,
				Actions: []*nstancev1.PlannedAction{
					{Kind: "create", Replaces: firstID, Reason: "it has an outdated configuration"},
					{Kind: "mark_deleting", InstanceId: secondID, Cause: "unregistered", Reason: "it never registered",
						Deadline: timestamppb.New(fleettest.Now.Add(time.Minute))},
				},
				Instances: []*nstancev1.InstanceVerdict{
					{InstanceId: firstID, Rule: 15, RuleName: "drifted", Cause: "drift"},
					{InstanceId: secondID, Rule: 7, RuleName: "unregistered", Cause: "unregistered", Work: "creating",
						Until: timestamppb.New(fleettest.Now.Add(time.Hour))},
				},
				Errors: []*nstancev1.ErrorEvent{{Kind: "backoff", Group: "workers", Message: "3 creations failed",
					At: ago(time.Minute)}},
			},
			"batch": {PlannedAt: ago(0), Term: 7,
				Wait: &nstancev1.Wait{Text: "the group has no instances, as configured", Resting: true}},
		},
	}
}

// waiting is what the group workers of a [fixture] waits for.
var waiting = &nstancev1.Wait{Text: "1 more instance at 10:00:04: no capacity"}

// scaled gives the group workers a size that the leader chooses. The leader led before, and leads again since an hour.
func scaled(s *fleettest.Shard) {
	s.Explanations["workers"].Scaling = &nstancev1.GroupScaling{Wanted: 3, LimitedBy: "down.stabilization",
		Why: "cpu is at 31 %, with a target of 60 %, which asks for 3 (rule 73); more may have been asked for within " +
			"the last 5m0s (rule 74)", Until: timestamppb.New(fleettest.Now.Add(3 * time.Minute))}
	h := &nstancev1.GetScalingHistoryResponse{Interval: durationpb.New(5 * time.Minute), LeaderId: "one",
		LeaderSince: ago(time.Hour)}
	for i, minutes := range []int{300, 295, 60, 55, 50} {
		cpu := &nstancev1.ScalingMetric{Name: "cpu", Target: 60, Wanted: 3}
		if i > 0 {
			cpu.Value = new(30 + float64(i))
		}
		h.Points = append(h.Points, &nstancev1.ScalingPoint{At: ago(time.Duration(minutes) * time.Minute), Size: 6,
			Wanted: 3, Metrics: []*nstancev1.ScalingMetric{cpu, {Name: "network", Value: new(1.5e6), Target: 5e6,
				Wanted: 2}}})
	}
	s.Scaling = map[string]*nstancev1.GetScalingHistoryResponse{"workers": h}
}

// shards starts two shards. It returns a command line with their addresses. The returned replacer makes the outputs of
// this command line the same in every run.
func shards(t *testing.T) (cli terminalless, a, b *fleettest.Shard, replace *strings.Replacer) {
	t.Helper()
	c := fleettest.NewCluster(t, "example")
	a, b = fixture("us-a"), fixture("us-b")
	addrA, _ := c.Serve(t, "us-a", a)
	addrB, _ := c.Serve(t, "us-b", b)
	dir := c.Identity(t, "default", fleettest.Now, month)
	cli.env = map[string]string{envServers: "us-a=" + addrA + ",us-b=" + addrB, envIdentity: dir}
	return cli, a, b, strings.NewReplacer(addrA, "10.0.0.1:8993", addrB, "10.0.0.2:8993", dir, "/identity")
}

// TestTranscripts runs command lines against servers over mutual TLS, and compares the complete outputs with golden
// files.
func TestTranscripts(t *testing.T) {
	invalid := &nstancev1.RefreshConfigResponse{Result: nstancev1.RefreshResult_REFRESH_RESULT_INVALID,
		Problems: []*nstancev1.ConfigProblem{
			{Path: "groups.default.web.size", Line: 31, Column: 45, Message: "want a whole number"},
			{Message: "the cluster's CA is gone"},
		}}
	down := func(s *fleettest.Shard) {
		s.Before = func(string) error { return status.Error(codes.Unavailable, "the bucket does not answer") }
	}
	for name, test := range map[string]struct {
		args string
		b    func(*fleettest.Shard) // changes of the second shard
	}{
		"group-list":         {args: "group list --all-shards"},
		"group-list-one":     {args: "group list --shard us-b"},
		"group-list-json":    {args: "group list --shard us-a -o json"},
		"group-list-wide":    {args: "group list --all-shards -o wide"},
		"instance-list-wide": {args: "instance list --all-shards -o wide"},
		"group-list-yaml":    {args: "group list --shard us-a -o yaml"},
		"group-list-partial": {args: "group list --all-shards", b: down},
		"group-list-partial-json": {args: "group list --all-shards -o json", b: func(s *fleettest.Shard) {
			down(s)
			s.Groups = nil
		}},
		"group-list-none":    {args: "group list --shard us-b", b: func(s *fleettest.Shard) { s.Groups = nil }},
		"group-list-shards":  {args: "group list"},
		"group-list-unknown": {args: "group list --shard us-c"},
		"group-status":       {args: "group status workers --shard us-a"},
		"group-describe-all": {args: "group describe --all-shards", b: func(s *fleettest.Shard) {
			s.Groups = s.Groups[1:]
		}},
		"group-status-create-rate-limit":  {args: "group status workers --shard us-b", b: limited},
		"explain-group-create-rate-limit": {args: "explain group workers --shard us-b", b: limited},
		"group-describe-missing":          {args: "group status nobody --shard us-a"},
		"group-scale":                     {args: "group scale workers 5 --shard us-a"},
		"group-list-set":                  {args: "group list --shard us-b", b: scaledByAlice},
		"group-describe-set":              {args: "group describe workers --shard us-b", b: scaledByAlice},
		"group-list-spares":               {args: "group list --shard us-b", b: spared},
		"group-describe-spares":           {args: "group describe workers --shard us-b", b: spared},
		"group-scale-spares":              {args: "group scale workers 4 --shard us-b --dry-run", b: spared},
		"instance-list-spares":            {args: "instance list --shard us-b", b: spared},
		"instance-describe-spare":         {args: "instance describe " + firstID + " --shard us-b", b: spared},
		"group-reset":                     {args: "group reset workers --shard us-b --yes", b: scaledByAlice},
		"group-reset-dry":                 {args: "group reset workers --shard us-b --dry-run", b: scaledByAlice},
		"group-reset-dynamic":             {args: "group reset batch --shard us-a --yes"},
		"group-reset-bad":                 {args: "group reset workers --field siez --shard us-a --yes"},
		"group-scale-past":                {args: "group scale workers 5 --until -2h --shard us-a"},
		"group-scale-all": {args: "group scale workers 5 --all-shards --per-shard", b: func(s *fleettest.Shard) {
			s.Groups = s.Groups[1:]
		}},
		"group-scale-which": {args: "group scale workers 5 --all-shards"},
		"group-scale-total": {args: "group scale workers 5 --all-shards --total --yes"},
		"group-scale-total-one": {args: "group scale workers 5 --all-shards --total --yes", b: func(
			s *fleettest.Shard) {
			s.Groups = s.Groups[1:]
		}},
		"group-scale-total-down": {args: "group scale workers 5 --all-shards --total", b: down},
		"group-scale-by":         {args: "group scale workers +2 --shard us-a"},
		"group-scale-minus":      {args: "group scale workers -2 --shard us-a --dry-run"},
		"group-scale-minus-much": {args: "scale group workers -7 --shard us-a --yes"},
		"group-scale-by-all":     {args: "group scale workers +1 --all-shards"},
		"group-scale-by-total":   {args: "group scale workers +1 --all-shards --total"},
		"get-groups":             {args: "get groups --shard us-a"},
		"get-group":              {args: "get group workers --shard us-a -o json"},
		"describe-instance":      {args: "describe instance 00008 --shard us-a -o json"},
		"ls":                     {args: "instances ls --shard us-a"},
		"group-scale-json":       {args: "group scale workers 5 --shard us-a -o json"},
		"group-scale-smaller":    {args: "group scale workers 1 --shard us-a"},
		"group-scale-dry":        {args: "group scale workers 5 --all-shards --total --dry-run"},
		"group-scale-bad":        {args: "group scale workers many --shard us-a"},
		"group-scale-short":      {args: "group scale workers"},
		"group-pause":            {args: "group pause workers --shard us-a"},
		"group-pause-missing":    {args: "group pause nobody --shard us-a"},
		"group-pause-bad":        {args: "group pause No/body --shard us-a"},
		"group-resume":           {args: "group resume workers --shard us-a"},
		"group-roll":             {args: "group roll workers --shard us-a --yes"},
		"group-create": {
			args: "group create web --template worker --size 2 --set vars.k=v,w --set rollout.canary=1 --shard us-a"},
		"group-create-there":       {args: "group create workers --template worker --shard us-a"},
		"group-create-no-template": {args: "group create web --shard us-a"},
		"group-delete":             {args: "group delete batch --shard us-a --yes"},
		"group-delete-dry":         {args: "group delete batch --shard us-a --dry-run"},
		"group-delete-static-dry":  {args: "group delete workers --shard us-a --dry-run"},
		"group-delete-ask":         {args: "group delete batch --shard us-a"},
		"instance-delete-dry":      {args: "instance delete " + firstID + " --shard us-a --dry-run"},
		"group-delete-static": {args: "group delete workers --all-shards --yes", b: func(s *fleettest.Shard) {
			s.Groups[0].Overridden = false
		}},
		"instance-list": {args: "instance list --all-shards", b: func(s *fleettest.Shard) {
			s.Instances = s.Instances[:1]
		}},
		"instance-list-yaml": {args: "instance list --shard us-a --output yaml"},
		"instance-describe": {args: "instance describe " + firstID + " --all-shards", b: func(s *fleettest.Shard) {
			s.Instances = nil
		}},
		"instance-describe-scaling": {args: "instance describe " + firstID + " --shard us-b",
			b: func(s *fleettest.Shard) {
				s.Instances[1].Scaling = []*nstancev1.ScalingMetric{{Name: "cpu", Target: 60, Value: new(71.25)},
					{Name: "inflight", Target: 100, Value: new(130.0)},
					{Name: "vm", Target: 5, Problem: "127.0.0.1:9100/metrics: connection refused"}}
			}},
		"instance-show-missing":     {args: "instance show wrk06gx5zsg2nrrqcrz000000000g --all-shards"},
		"instance-show-provider-id": {args: "instance show i-1 --shard us-a"},
		"instance-find-suffix": {args: "instance protect 00008", b: func(s *fleettest.Shard) {
			s.Instances = nil
		}},
		"instance-find-short": {args: "explain instance wrk…008 --shard us-a"},
		"instance-find-url":   {args: "instance delete aws:///zone/I-7 --yes", b: elsewhere},
		"instance-find-two":   {args: "instance drain wrk06 --shard us-a"},
		"instance-find-none":  {args: "instance drain 06gx5zsg3nrrqcrz --yes", b: elsewhere},
		"instance-find-near":  {args: "instance drain wrk06gx5zsg3nrrqcrz00000000001 --yes", b: elsewhere},
		"instance-find-least": {args: "instance drain wr --yes"},
		"instance-find-down": {args: "instance show wrk06gx5zsg", b: func(s *fleettest.Shard) {
			s.Before = func(string) error { return status.Error(codes.Unavailable, "the bucket does not answer") }
		}},
		"instance-operator-id": {args: "instance show opr06gx5zsg2nrrqcrz0000000000"},
		"group-tenant":         {args: "group pause default/workers --shard us-a"},
		"group-tenant-other":   {args: "group pause prod/workers --shard us-a"},
		"group-near":           {args: "group pause worker --shard us-a"},
		"instance-create":      {args: "instance create workers --shard us-a --instance-type big"},
		"instance-delete":      {args: "instance delete " + firstID + " --shard us-a --reason broken --yes"},
		"instance-protect": {args: "instance protect " + firstID + " --all-shards", b: func(s *fleettest.Shard) {
			s.Instances = nil
		}},
		"instance-list-preserved": {args: "instance list --shard us-b --preserved", b: preservedInstance},
		"instance-describe-preserved": {args: "instance describe " + firstID + " --shard us-b",
			b: preservedInstance},
		"group-describe-preserved": {args: "group describe workers --shard us-b", b: func(s *fleettest.Shard) {
			s.Groups[0].Preserved = 1
		}},
		"instance-release":         {args: "instance release " + firstID + " --shard us-b --yes", b: preservedInstance},
		"instance-release-healthy": {args: "instance release " + firstID + " --shard us-a --yes"},
		"instance-release-ask": {args: "instance release " + firstID + " --shard us-b --dry-run",
			b: preservedInstance},
		"instance-release-bad": {args: "instance release i-1 --shard us-a --yes"},
		"instance-protect-off": {args: "instance protect " + firstID + " --shard us-a --off"},
		"instance-drain": {args: "instance drain " + firstID + " --shard us-b --yes", b: func(s *fleettest.Shard) {
			s.Drained = true
		}},
		"instance-delete-decrement": {args: "instance delete " + firstID + " --shard us-a --decrement --yes"},
		"instance-console": {args: "instance console " + firstID + " --shard us-b", b: func(s *fleettest.Shard) {
			s.Console = "booting\n\tlogin:\x1b[2J\n"
		}},
		"instance-console-none": {args: "instance console " + firstID + " --shard us-b", b: func(s *fleettest.Shard) {
			s.Console = ""
		}},
		"explain-instance-late": {args: "explain instance " + secondID + " --shard us-b", b: func(s *fleettest.Shard) {
			s.Console = "boot: no such file\n"
			s.Explanations["workers"].Instances[1].Late = true
		}},
		"explain-instance-late-denied": {args: "explain instance " + secondID + " --shard us-b",
			b: func(s *fleettest.Shard) { s.Console, s.Explanations["workers"].Instances[1].Late = "", true }},
		"group-history":        {args: "group history workers --shard us-b", b: scaled},
		"group-history-json":   {args: "group history workers --shard us-b -o json", b: scaled},
		"group-history-none":   {args: "group history workers --shard us-a"},
		"explain-group-scaled": {args: "explain group workers --shard us-b", b: scaled},
		"explain-group":        {args: "explain group workers --shard us-a"},
		"explain-group-quiet":  {args: "explain group batch --all-shards"},
		"explain-group-alerts": {args: "explain group batch --shard us-b", b: func(s *fleettest.Shard) {
			e := s.Explanations["batch"]
			e.UnhealthyGuard = true
			e.Wait = &nstancev1.Wait{Text: "2 of the group's 3 running instances are silent or fail a health check: " +
				"not replacing them, the fault is more likely here (rule 26)"}
			e.Errors = []*nstancev1.ErrorEvent{{Kind: "unhealthy_guard", Group: "batch", Message: "2 of 3 fail"},
				{Kind: "storage", Message: "AccessDenied"}}
			for _, id := range []string{firstID, secondID} {
				e.Instances = append(e.Instances, &nstancev1.InstanceVerdict{InstanceId: id, Rule: 11, RuleName: "held",
					FailedCheck: "disk: exit status 1"})
			}
		}},
		"explain-group-json":    {args: "explain group workers --shard us-a -o json"},
		"explain-group-missing": {args: "explain group nobody --shard us-a"},
		"explain-group-bad":     {args: "explain group No/body --shard us-a"},
		"explain-instance": {args: "explain instance " + firstID + " --all-shards",
			b: func(s *fleettest.Shard) { s.Instances = nil }},
		"explain-instance-ended": {args: "explain instance " + secondID + " --shard us-b", b: func(s *fleettest.Shard) {
			s.Explanations["workers"].Instances = nil
		}},
		"events-since":      {args: "events --since 2h --all-shards"},
		"events-since-json": {args: "events --instance " + firstID + " --shard us-a -o json"},
		"events-since-none": {args: "events --kind instance_lost --shard us-b",
			b: func(s *fleettest.Shard) { s.History = nil }},
		"events-since-bad":            {args: "events --since yesterday --shard us-a"},
		"events-changes-group":        {args: "events --changes --group workers --shard us-a"},
		"events-instance-provider-id": {args: "events --instance i-1 --shard us-a"},
		"events-instance-past":        {args: "events --instance wrk06gx5zsg2nrrqcrz0000000008", b: elsewhere},
		"status": {args: "status", b: func(s *fleettest.Shard) {
			s.Status.HeirId, s.Status.StandbyIds, s.Status.RefusedEtag = "", nil, "bad"
			s.Status.Problems = invalid.Problems
			s.Status.Errors = []*nstancev1.ErrorEvent{{Kind: "backoff", Group: "workers", Message: "no capacity"}}
		}},
		"status-down":          {args: "status", b: down},
		"status-json":          {args: "status --shard us-a -o json"},
		"server-list":          {args: "server list --all-shards"},
		"server-step-down":     {args: "server step-down --shard us-a --yes"},
		"server-step-down-ask": {args: "server step-down --shard us-a"},
		"server-step-down-dry": {args: "server step-down --shard us-a --dry-run"},
		"orphans-list-none":    {args: "orphans list --shard us-a"},
		"orphans-list":         {args: "orphans list --all-shards", b: orphaned},
		"orphans-list-role": {args: "orphans list --shard us-b", b: func(s *fleettest.Shard) {
			s.Before = func(method string) error {
				return status.Errorf(codes.PermissionDenied,
					"%s needs the role admin: register the operator with --role admin", method)
			}
		}},
		"orphans-confirm":        {args: "orphans confirm vm-1 vm-2 vm-3 --shard us-b --yes", b: orphaned},
		"orphans-confirm-others": {args: "orphans confirm vm-1 --shard us-b --yes", b: orphaned},
		"orphans-confirm-all":    {args: "orphans confirm vm-1 --all-shards --yes"},
		"config-status": {args: "config status --all-shards", b: func(s *fleettest.Shard) {
			s.Config.RefusedEtag = "bad"
			s.Config.Problems = invalid.Problems
		}},
		"config-status-waits": {args: "config status --shard us-b", b: func(s *fleettest.Shard) {
			s.Config.Waits = "server-2 has not restarted; at most until 02:10:30"
		}},
		"status-config-waits": {args: "status --shard us-b", b: func(s *fleettest.Shard) {
			s.Status.ConfigWaits = "server-2 has not restarted; at most until 02:10:30"
		}},
		"config-status-json": {args: "config status --shard us-a -o json"},
		"config-refresh": {args: "config refresh --all-shards", b: func(s *fleettest.Shard) {
			s.Refresh = invalid
		}},
		"config-refresh-json": {args: "config refresh --shard us-b -o json", b: func(s *fleettest.Shard) {
			s.Refresh = invalid
		}},
		"config-refresh-restarting": {args: "config refresh --shard us-b", b: func(s *fleettest.Shard) {
			s.Refresh.Restarting = true
		}},
		"unknown-command":            {args: "group lst"},
		"unknown-flag":               {args: "group list --shrad us-a"},
		"unknown-format":             {args: "group list --output xml"},
		"shard-and-all-shards":       {args: "group list --shard us-a --all-shards"},
		"no-servers":                 {args: "group list --servers ,"},
		"bad-servers":                {args: "group list --servers us-a"},
		"no-identity":                {args: "group list --shard us-a --identity-dir /nonexistent"},
		"serve-open-without-a-token": {args: "serve --bind 0.0.0.0:0"},
		"version":                    {args: "version"},
		"version-all": {args: "version --all", b: func(s *fleettest.Shard) {
			s.Status.Version = "1.2.3"
		}},
		"version-all-down": {args: "version --all", b: down},
	} {
		t.Run(name, func(t *testing.T) {
			cli, _, b, replace := shards(t)
			if test.b != nil {
				test.b(b)
			}
			golden(t, filepath.Join("testdata", "cli", name+".txt"), cli.transcript(t, replace,
				strings.Fields(test.args)...))
		})
	}
}

// TestTablesFit checks that the tables with ordinary names fit into 80 columns. The last column, a note, may be longer.
func TestTablesFit(t *testing.T) {
	c := fleettest.NewCluster(t, "example")
	cli := terminalless{env: map[string]string{envIdentity: c.Identity(t, "default", fleettest.Now, month)}}
	for _, zone := range []string{"us-west-2a", "us-west-2b"} {
		shard := fixture(zone)
		shard.Status.LeaderId, shard.Status.HeirId = zone+"-1", zone+"-2"
		shard.Status.StandbyIds = []string{zone + "-2"}
		shard.Config.Etag = "9bb58f26192e4ba00f01e2e7b136bbd8"
		shard.Instances[0].ProviderId = "i-0a1b2c3d4e5f60718"
		shard.Orphans = []*nstancev1.Orphan{{ProviderId: "i-0a1b2c3d4e5f60718", InstanceId: firstID, Tenant: "default",
			Group: "workers", State: "running", LaunchedAt: ago(time.Hour)}}
		shard.History = append(shard.History, &nstancev1.JournalEvent{Position: "7-4", At: ago(time.Second),
			Kind: "registration_refused", Group: "workers", InstanceId: firstID, Actor: "alice", Message: "nonce"})
		addr, _ := c.Serve(t, zone, shard)
		cli.env[envServers] += zone + "=" + addr + ","
	}
	for _, line := range []string{"group list --all-shards", "instance list --all-shards", "status", "version --all",
		"server list --all-shards", "orphans list --all-shards", "config status --all-shards",
		"explain group workers --shard us-west-2a", "explain group batch --all-shards", "config history --all-shards",
		"events --all-shards", "context list"} {
		rows := strings.Split(cli.must(t, strings.Fields(line)...), "\n")
		note := 80 // where the last column begins; other lines have no columns
		for _, row := range rows {
			if row == "" || row == strings.ToUpper(row) {
				note = strings.LastIndex(row, "   ")
			}
			if strings.HasPrefix(row, "Group:") {
				note = 0
			}
			if len([]rune(row)) > 80 && note > 80-3 {
				t.Errorf("%s: the last column begins at %d: %s", line, note, row)
			}
		}
	}
}

// limited makes the shard report that its first group waits because of create_rate_limit.
func limited(s *fleettest.Shard) {
	limited := &nstancev1.Wait{Text: "1 more instance at 10:00:20: create_rate_limit allows 1 create per 1m in the " +
		"shard, and it is used"}
	s.Groups[0].Wait, s.Explanations["workers"].Wait = limited, limited
}

// spared gives the group workers a spare that sleeps, and another one that is on the way.
func spared(s *fleettest.Shard) {
	s.Groups[0].Spares = &nstancev1.GroupSpares{Count: 2, Actual: 2, Ready: 1, State: "stopped"}
	asleep := s.Instances[1]
	asleep.Spare, asleep.Health, asleep.ProviderState, asleep.InfraDrift = true, "asleep", "stopped", false
	s.Instances[0].Spare = true
	s.Explanations["workers"].Actions = []*nstancev1.PlannedAction{{Kind: "promote", InstanceId: firstID},
		{Kind: "wake", InstanceId: firstID}, {Kind: "sleep", InstanceId: secondID}}
}

// TestScaleByLosesNoChange changes the size of a group while another program changes it, too.
func TestScaleByLosesNoChange(t *testing.T) {
	cli, a, _, _ := shards(t)
	others := 2
	a.Before = func(method string) error {
		if method == "UpsertGroup" && others > 0 {
			others--
			a.Groups[0].Size += 10
			a.Groups[0].Etag += "+"
		}
		return nil
	}
	if out := cli.must(t, "group", "scale", "workers", "+2", "--shard", "us-a"); !strings.Contains(out, "23 → 25") {
		t.Error(out)
	}
}

// elsewhere gives a shard another instance than [fixture] does.
func elsewhere(s *fleettest.Shard) {
	s.Instances = s.Instances[:1]
	s.Instances[0].InstanceId, s.Instances[0].ProviderId = "wrk06gx5zsg2nrrqcrz000000000g", "aws:///zone/i-7"
}

// orphaned gives a shard three orphans.
// preservedInstance makes the first instance fail its health check and be preserved.
func preservedInstance(s *fleettest.Shard) {
	i := s.Instances[1]
	i.Health, i.HealthMessage, i.RuntimeDrift = "unhealthy", "health check web: status 503, want 200", true
	i.PreservedAt, i.PreservedUntil = ago(time.Hour), timestamppb.New(fleettest.Now.Add(23*time.Hour))
	i.PreserveReason = "its health check fails: web: status 503, want 200 (rule 52)"
}

func orphaned(s *fleettest.Shard) {
	for _, id := range []string{"vm-1", "vm-2", "vm-3"} {
		s.Orphans = append(s.Orphans, &nstancev1.Orphan{ProviderId: id, InstanceId: firstID, Tenant: "default",
			Group: "workers", State: "running"})
	}
}

// Environment variables can set the same values as flags. Flags take precedence.
func TestEnvironment(t *testing.T) {
	cli, a, _, _ := shards(t)
	cli.env[envShard] = "us-b"
	if out := cli.must(t, "status"); strings.Contains(out, "us-a") || !strings.Contains(out, "us-b") {
		t.Error(out)
	}
	if out := cli.must(t, "status", "--shard", "us-a"); strings.Contains(out, "us-b") {
		t.Error(out)
	}
	if out := cli.must(t, "status", "--all-shards"); !strings.Contains(out, "us-a") ||
		!strings.Contains(out, "us-b") {
		t.Error(out)
	}
	delete(cli.env, envShard)
	one, _, _ := strings.Cut(cli.env[envServers], ",")
	if out := cli.must(t, "status", "--servers", one); !strings.Contains(out, "us-a") {
		t.Error(out)
	}
	if len(a.Calls) == 0 {
		t.Error("nothing was asked")
	}
	// A certificate in the last third of its life causes a warning.
	cli.env[envIdentity] = fleettest.NewCluster(t, "example").Identity(t, "default",
		fleettest.Now.Add(-21*24*time.Hour), 30*24*time.Hour)
	_, stderr, code := cli.run(t, "status", "--all-shards")
	if code != exitOK || !strings.Contains(stderr, "ends at 2026-08-06T10:00:00Z") {
		t.Error(code, stderr)
	}
}

// Progress is shown only if a call takes more than one second.
func TestProgress(t *testing.T) {
	var errs bytes.Buffer
	a := newApp("1", Environment{Stdout: io.Discard, Stderr: &errs, Getenv: func(string) string { return "" }})
	if err := during(a, "asking", func() error { return nil }); err != nil || errs.Len() > 0 {
		t.Error(err, errs.String())
	}
	if err := during(a, "asking shard us-a", func() error {
		<-time.After(patience + 200*time.Millisecond)
		return nil
	}); err != nil || errs.String() != "asking shard us-a …\n" {
		t.Errorf("%v, %q", err, errs.String())
	}
}

func TestColours(t *testing.T) {
	for _, test := range []struct {
		palette palette
		want    string
	}{{true,
		"\x1b[2mNAME\x1b[0m   \x1b[2mSTATE\x1b[0m\na      \x1b[31mbad\x1b[0m\nlong   \x1b[32mok\x1b[0m\n?[2J   -\n"},
		{false, "NAME   STATE\na      bad\nlong   ok\n?[2J   -\n"}} {
		var out bytes.Buffer
		rows := [][]cell{{{text: "a"}, {"bad", test.palette.bad}}, {{text: "long"}, {"ok", test.palette.good}},
			{{text: "\x1b[2J"}, {}}}
		app := &app{style: style{out: test.palette}}
		if err := app.table(&out, []string{"NAME", "STATE"}, rows); err != nil ||
			out.String() != test.want {
			t.Errorf("%v: %q", err, out.String())
		}
	}
	// NO_COLOR switches off the colors of standard output. Standard error is a buffer here and never gets colors.
	if s := newStyle(Environment{Stdout: os.Stdout, Stderr: &bytes.Buffer{}, Getenv: func(string) string {
		return "1"
	}}); s.out || s.err {
		t.Error("colours although NO_COLOR is set")
	}
}

// Every command has a description. Every command without subcommands has an example.
func TestHelp(t *testing.T) {
	a := newApp("1", System())
	commands := 0
	walk(a.command(), func(cmd *command) {
		commands++
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: short %q", cmd.CommandPath(), cmd.Short)
		}
		if !cmd.HasSubCommands() && cmd.Example == "" && cmd.Name() != "version" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.SplitSeq(cmd.Long, "\n") {
			if len([]rune(line)) > 92 {
				t.Errorf("%s: a line of %d characters: %s", cmd.CommandPath(), len([]rune(line)), line)
			}
		}
		for _, name := range regexp.MustCompile(`--[a-z-]+`).FindAllString(cmd.Example, -1) {
			if strings.Contains(name, "from-") || name == "--namespace" { // flags of kubectl
				continue
			}
			if cmd.Flag(strings.TrimPrefix(name, "--")) == nil {
				t.Errorf("%s: the example has %s, which is no flag", cmd.CommandPath(), name)
			}
		}
	})
	if commands < 30 {
		t.Error(commands, "commands only")
	}
}

// scaledByAlice gives the group "workers" a size and a type that an operator has set.
func scaledByAlice(s *fleettest.Shard) {
	at := timestamppb.New(fleettest.Clock().Add(-10 * time.Minute))
	s.Groups[0].Overridden = true
	s.Groups[0].Overrides = []*nstancev1.GroupOverride{
		{Path: "instance_type", Value: `"large"`, By: "bob", At: at, Pinned: true},
		{Path: "size", Value: fmt.Sprint(s.Groups[0].GetSize()), Configured: "6", By: "alice", At: at},
	}
}

package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// claimed is the error message for a template that refers to .Claimed outside the content of a file.
const claimed = ".Claimed, which an agent says of itself, is only for the content of files (env, json, string); " +
	"use .Instance, which the provider knows (rendered for group default/g)"

// TestValidate has one case for each rule that is not about a field's type. Marks (@) show the position of the problem.
func TestValidate(t *testing.T) {
	aws := func(server, template, group, rest string) string {
		src := with(server, template, group, rest)
		src = strings.Replace(src, `{"kind": "mock"}`, `{"kind": "aws", "region": "r", "zone": "z"}`, 1)
		fields := `"arch": "arm64", "instance_type": "t4g.nano"`
		if !strings.Contains(template, `"args"`) {
			fields += `, "args": ` + images[onAWS]
		}
		return strings.Replace(src, `"arch": "arm64"`, fields, 1)
	}
	gcp := func(server, rest string) string {
		return strings.NewReplacer(`{"kind": "aws", "region": "r", "zone": "z"}`,
			`{"kind": "gcp", "region": "us-central1", "zone": "us-central1-a"}`, images[onAWS], images[onGCP]).
			Replace(aws(server, "", "", rest))
	}
	swap := func(old, new string) string {
		src := with("", "", "", "")
		if !strings.Contains(src, old) {
			t.Fatalf("no %s in the minimal config", old)
		}
		return strings.Replace(src, old, new, 1)
	}
	cert := func(fields string) string {
		return with("",
			`, "files": {"c.crt": {"kind": "certificate", "template": "c", "key": {"source": "agent", "name": "c.pub"}}}`, "",
			`, "certificates": {"c": {"kind": "server", `+fields+`}}`)
	}
	file := func(name, fields string) string { return with("", `, "files": {"`+name+`": {`+fields+`}}`, "", "") }
	for _, tt := range []struct {
		name, src string
		want      []string
	}{
		{"right", with("", "", "", ""), nil},
		{"aws, right", aws("", "", "", ""), nil},
		{"attestation, right", aws(`, "attestation": {"method": "aws-iid", "certificates": "`+attestationCertificate+`"}`,
			"", "", ""), nil},
		{"attestation of another cloud", with(`, "attestation": {"method": @"aws-iid", "certificates": @"x"}`, "", "", ""),
			[]string{`server.attestation.method: "aws-iid" is not a proof of provider mock`,
				`server.attestation.certificates: is not a list of PEM certificates`}},
		{"attestation by another name", aws(`, "attestation": {"method": @"aws-idd", "certificates": ""}`, "", "", ""),
			[]string{`server.attestation.method: "aws-idd" is none of aws-iid, gcp-identity-token ` +
				`(did you mean "aws-iid"?)`}},
		{"batches, right", aws(`, "attestation": {"method": "aws-iid", "certificates": "`+attestationCertificate+
			`", "batches": true}`, "", "", ""), nil},
		{"batches on Google Cloud", gcp(`, "attestation": {"method": "gcp-identity-token", "batches": true}`, ""), nil},
		{"attestation on Google Cloud, right", gcp(`, "attestation": {"method": "gcp-identity-token"}`, ""), nil},
		{"attestation on Google Cloud with certificates",
			gcp(`, "attestation": {"method": "gcp-identity-token", "certificates": @"`+attestationCertificate+`"}`, ""),
			[]string{`server.attestation.certificates: is not for gcp-identity-token: the cloud publishes its keys`}},
		{"attestation without certificates", aws(`, "attestation": @{"method": "aws-iid"}`, "", "", ""),
			[]string{`server.attestation.certificates: is required for aws-iid`}},

		{"cluster name", swap(`"example"`, `@"a--b"`),
			[]string{`cluster.id: name "a--b" contains "--", which is reserved`}},
		{"cluster name too long", swap(`"example"`, `@"`+strings.Repeat("a", 31)+`"`),
			[]string{`cluster.id: name "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" has 31 characters, at most 30 are allowed`}},
		{"no cluster name", swap(`{"id": "example", `, `@{`), []string{`cluster.id: is required`}},
		{"storage",
			swap(`"id": "example",`,
				`"id": "example", "storage": @{"provider": @"s4", "prefix": @"/x", "endpoint": @"localhost:9000"},`),
			[]string{
				`cluster.storage.bucket: is required`,
				`cluster.storage.provider: "s4" is none of ` + strings.Join(ObjectStoreNames(), ", ") +
					` (did you mean "s3"?)`,
				`cluster.storage.prefix: "/x" begins with a slash, or has an empty part or a control character`,
				`cluster.storage.endpoint: endpoint "localhost:9000" is no URL of a server, such as https://storage.example.com`}},
		{"path of parameters", swap(`"secrets": {`,
			`"secrets": {"provider": "aws-parameter-store", "prefix": "/nstance/example/", `), nil},
		{"path with an empty part", swap(`"secrets": {`,
			`"secrets": {"provider": "aws-parameter-store", "prefix": @"//x/", `), []string{
			`cluster.secrets.prefix: "/x/" begins with a slash, or has an empty part or a control character`}},
		{"endpoint of a directory",
			swap(`"id": "example",`,
				`"id": "example", "storage": {"provider": "file", "bucket": "b", "endpoint": @"http://x"},`), []string{
				`cluster.storage.endpoint: is for provider s3 only`}},
		{"identity of a role", swap(`"id": "example",`, `"id": "example", "storage": {"provider": "s3", "bucket": "b-1",
			"region": "us-west-2", "identity": {"role_arn": "arn:aws:iam::123456789012:role/path/nstance"}},`), nil},
		{"identity of a pool", swap(`"id": "example",`, `"id": "example", "storage": {"provider": "gcs",
			"bucket": "b-1", "identity": {"service_account": "nstance@p-1.iam.gserviceaccount.com", "pool_provider":
			"projects/123456789012/locations/global/workloadIdentityPools/nstance/providers/aws1"}},`), nil},
		{"wrong role", swap(`"id": "example",`, `"id": "example", "storage": @{"provider": "s3", "bucket": "b-1",
			"identity": {"role_arn": @"nstance", "pool_provider": @"p"}},`), []string{
			`cluster.storage.region: is required with identity.role_arn (the region of the bucket)`,
			`cluster.storage.identity.role_arn: "nstance" is not the ARN of a role (such as arn:aws:iam::123456789012:role/nstance)`,
			`cluster.storage.identity.pool_provider: is for provider gcs only`}},
		{"no role", swap(`"id": "example",`, `"id": "example", "storage": {"provider": "s3", "bucket": "b-1",
			"identity": @{}},`), []string{
			`cluster.storage.identity: has neither role_arn nor profile (leave identity out to use the servers' own AWS credentials)`}},
		{"wrong pool", swap(`"id": "example",`, `"id": "example", "storage": {"provider": "gcs", "bucket": "b-1",
			"identity": @{"service_account": @"nstance", "role_arn": @"arn:aws:iam::123456789012:role/r"}},`), []string{
			`cluster.storage.identity.pool_provider: "" is not the name of a provider of a workload identity pool (such as projects/123456789012/locations/global/workloadIdentityPools/nstance/providers/aws, with the number of the project)`,
			`cluster.storage.identity.service_account: "nstance" is not the email of a service account (such as nstance@my-project.iam.gserviceaccount.com)`,
			`cluster.storage.identity.role_arn: is for provider s3 only`}},
		{"identity of a directory", swap(`"id": "example",`, `"id": "example", "storage": {"provider": "file",
			"bucket": "b", "identity": @{"profile": "p"}},`), []string{
			`cluster.storage.identity: is not for provider file`}},
		{"no encryption key", swap(`"secrets": {"encryption_key": {"provider": "env"}}`, `"secrets": @{}`), []string{
			`cluster.secrets.encryption_key: is required: secrets in object storage are always sealed ({"provider": "env"} reads it from NSTANCE_ENCRYPTION_KEY)`}},
		{"no encryption key needed", swap(`{"encryption_key": {"provider": "env"}}`,
			`{"provider": "aws-secrets-manager", "cache_ttl": "0s"}`), nil},
		{"secrets project", swap(`{"encryption_key"`, `{"project_id": @"x", "encryption_key"`),
			[]string{`cluster.secrets.project_id: is for provider google-secret-manager only`}},
		{"variable name", swap(`{"provider": "env"}`, `{"provider": "env", "source": @"A-B"}`), []string{
			`cluster.secrets.encryption_key.source: "A-B" is not the name of an environment variable`}},
		{"key file", swap(`{"provider": "env"}`, `@{"provider": "file"}`),
			[]string{`cluster.secrets.encryption_key.source: is required for provider file`}},
		{"google key", swap(`{"provider": "env"}`, `@{"provider": "google-secret-manager", "source": "key"}`), []string{
			`cluster.secrets.encryption_key.project_id: is required where the source does not begin with projects/`}},
		{"google key, whole name",
			swap(`{"provider": "env"}`, `{"provider": "google-secret-manager", "source": "projects/p/secrets/key"}`), nil},
		{"google stores",
			swap(`"secrets": {`, `"storage": {"provider": "gcs", "bucket": "b"}, "secrets": {`), nil},
		{"key project", swap(`{"provider": "env"}`, `{"provider": "env", "project_id": @"x"}`),
			[]string{`cluster.secrets.encryption_key.project_id: is for provider google-secret-manager only`}},
		{"old keys",
			swap(`{"provider": "env"}`,
				`{"provider": "env"}, "old_encryption_keys": [@{"provider": "env"}, {"provider": "file", "source": "/k"}, @{"provider": "file", "source": "/k"}]`), []string{
				`cluster.secrets.old_encryption_keys[0]: is the current key`,
				`cluster.secrets.old_encryption_keys[2]: is there twice`}},

		{"shard name", swap(`"shard": "a"`, `"shard": @"A"`), []string{
			`server.shard: name "A" may only have lower-case letters, digits and dashes`}},
		{"provider", swap(`"mock"`, `@"awz"`),
			[]string{`server.provider.kind: "awz" is none of ` + strings.Join(CloudNames(), ", ") +
				` (did you mean "aws"?)`}},
		{"region and zone", strings.Replace(aws("", "", "", ""), `{"kind": "aws", "region": "r", "zone": "z"}`,
			`@{"kind": "aws"}`, 1), []string{
			`server.provider.region: is required for provider aws`,
			`=server.provider.zone: is required for provider aws`}},
		{"bind",
			with(`, "bind": {"health_addr": @"8990", "election_addr": @"localhost:http", "registration_addr": @"example.com:1", "operator_addr": "[::1]:0", "agent_addr": @"0.0.0.0:65536"}`, "", "", ""), []string{
				`server.bind.health_addr: "8990" is not an address such as "0.0.0.0:8990"`,
				`server.bind.election_addr: "localhost:http" has no port from 0 to 65535`,
				`server.bind.registration_addr: "example.com" is not an IP address to listen on`,
				`server.bind.agent_addr: "0.0.0.0:65536" has no port from 0 to 65535`}},
		{"bind twice",
			with(`, "bind": {"health_addr": "127.0.0.1:1", "election_addr": "127.0.0.2:1", "registration_addr": @":1", "operator_addr": "127.0.0.1:0", "agent_addr": "127.0.0.1:0"}`, "", "", ""), []string{
				`server.bind.registration_addr: port 1 is that of server.bind.election_addr too`}},
		{"bind at a default", with(`, "bind": @{"agent_addr": "0.0.0.0:1", "health_addr": "0.0.0.0:8991"}`, "", "", ""),
			[]string{
				`server.bind.election_addr: port 8991 is that of server.bind.health_addr too`}},
		{"advertise",
			with(`, "advertise": {"health_addr": ":1", "agent_addr": @"a_b c:2", "operator_addr": "host.example:3", "election_addr": @"host:0"}`,
				"", "", ""), []string{
				`server.advertise.agent_addr: "a_b c:2" has a host that is neither an IP address nor a name`,
				`server.advertise.election_addr: "host:0" has port 0, to which no client can connect`}},
		{"leader network", aws(`, "leader_network": {"ipv4": @"::1", "ipv6": @"10.0.0.1", "interface_id": @"vpc-1"}`,
			"", "", ""), []string{
			`server.leader_network.ipv4: "::1" is not an IPv4 address`,
			`server.leader_network.ipv6: "10.0.0.1" is not an IPv6 address`,
			`server.leader_network.interface_id: "vpc-1" does not begin with eni-`}},
		{"leader network without address", aws(`, "leader_network": @{"interface_id": "eni-1"}`, "", "", ""),
			[]string{`server.leader_network: has neither ipv4 nor ipv6`}},
		{"leader network without interface", aws(`, "leader_network": @{"ipv4": "10.0.0.1"}`, "", "", ""),
			[]string{`server.leader_network.interface_id: is required for provider aws`}},
		{"interface elsewhere", with(`, "leader_network": {"ipv4": "10.0.0.1", "interface_id": @"eni-1"}`, "", "", ""),
			[]string{`server.leader_network.interface_id: is for provider aws only`}},
		{"leader network by ARP", with(`, "leader_network": {"ipv4": "10.0.0.1", "kind": "arp"}`, "", "", ""), nil},
		{"leader network by a load balancer, elsewhere",
			with(`, "leader_network": {"ipv4": "10.0.0.1", "kind": @"alias"}`, "", "", ""),
			[]string{`server.leader_network.kind: "alias" is not for provider mock, which has arp`}},
		{"leader network of AWS with a kind",
			aws(`, "leader_network": {"ipv4": "10.0.0.1", "interface_id": "eni-1", "kind": @"arp"}`, "", "", ""),
			[]string{`server.leader_network.kind: is not for provider aws`}},
		{"leader network of an unknown kind",
			with(`, "leader_network": {"ipv4": "10.0.0.1", "kind": @"vrrp"}`, "", "", ""),
			[]string{`server.leader_network.kind: "vrrp" is none of alias, load_balancer, arp`}},
		{"leader network without a kind",
			strings.NewReplacer(`"kind": "mock"`, `"kind": "libvirt", "options": {"hosts": "a=qemu:///system"}`,
				`"template": "t"`, `"template": "t", "instance_type": "1x512", "args": {"image": "i"}`, `["s"]`, `["a/s"]`).Replace(
				with(`, "leader_network": @{"ipv4": "10.0.0.1"}`, "", "", "")),
			[]string{`server.leader_network.kind: is required for provider libvirt: arp`}},
		{"durations",
			with(`, "request_timeout": @"0s", "create_rate_limit": "0s", "health_check_interval": @"-1s", "shutdown_grace": @"1 s"`, "", "", ""), []string{
				`server.request_timeout: must be more than 0`,
				`server.health_check_interval: "-1s": a duration cannot be negative`,
				`server.shutdown_grace: "1 s" is not a duration such as "30s", "1h30m" or "21d"`}},
		{"expiry", with(`, "expiry": {"eligible_age": "21d", "forced_age": @"21d", "ondemand_age": "0s"}`, "", "", ""),
			[]string{`server.expiry.forced_age: 21d is not more than the eligible_age of 21d`}},
		{"expiry off", with(`, "expiry": {"eligible_age": "21d", "forced_age": ""}`, "", "", ""), nil},
		{"election",
			with(`, "leader_election": {"renew_interval": "6s", "peer_interval": "1s", "peer_lease": @"1s", "lease_duration": @"11s"}`, "", "", ""), []string{
				`server.leader_election.peer_lease: 1s is less than twice the peer_interval of 1s`,
				`server.leader_election.lease_duration: 11s is less than twice the renew_interval of 6s`}},
		{"no heir", with(`, "leader_election": {"peer_interval": "1s", "peer_lease": "0s"}`, "", "", ""), nil},
		{"jitter", with(`, "error_exit_jitter": @{"min_delay": "50s"}`, "", "", ""),
			[]string{`server.error_exit_jitter.max_delay: 40s is less than the min_delay of 50s`}},

		{"no pools", swap(`"subnet_pools": {"p": ["s"]}`, `"subnet_pools": @{}`),
			[]string{`server.subnet_pools: is required`}},
		{"pools",
			swap(`{"p": ["s"]}`,
				`{"p": ["s", @"s", @""], @"P": ["x"], "q": @[], "r": [@"s"]}, "dynamic_subnet_pools": ["q", @"qq", @"q"]`), []string{
				`server.subnet_pools.p[1]: "s" is there twice`, `server.subnet_pools.p[2]: is empty`,
				`server.subnet_pools.P: name "P" may only have lower-case letters, digits and dashes`,
				`server.subnet_pools.q: has no subnets`,
				`server.subnet_pools.r[0]: "s" is in pool "p" too`,
				`server.dynamic_subnet_pools[1]: there is no subnet pool "qq" (did you mean "q"?)`,
				`server.dynamic_subnet_pools[2]: "q" is there twice`}},

		{"tenants", with("", "", "", `, "tenants": {"default": {"max_groups": 0}, "prod": {"max_instances": @-1}, @"x-": {}}`),
			[]string{`tenants.prod.max_instances: cannot be negative`,
				`tenants.x-: name "x-" starts or ends with a dash`}},
		{"quota below the static groups", with("", "", `, "size": 4`, `, "tenants": {"default": @{"max_instances": 3, "max_groups": 0}}`),
			[]string{`tenants.default: tenant default would have 4 instances, at most 3 are permitted (to permit more, change tenants.default.max_instances in the shard's configuration)`}},
		{"template's tenants", with("", `, "tenants": ["default", @"pord", "prod", @"default", @""]`, "", `, "tenants": {"prod": {}}`),
			[]string{`templates.t.tenants[1]: there is no tenant "pord" (did you mean "prod"?)`,
				`templates.t.tenants[3]: "default" is there twice`, `templates.t.tenants[4]: is empty`}},
		{"permissions", with("", `, "args": {"list": [1], "object": {"text": "x"}}, "dynamic": {"args": ["/new/deep", "/list", "/object/text", "/a~1b~0",
			@"list", @"", @"/~2", @"/list/0", @"/object/text/x", @"/a~"], "instance_types": ["t4g.*", @"[", @"t4g.*"],
			"max_size": @-1, "subnet_pools": ["p", @"q"], "load_balancers": [@"www"], "vars": ["v", @"v"]}`, "", ""), []string{
			`templates.t.dynamic.args[4]: is not a JSON pointer to an argument, such as "/MetadataOptions/HttpTokens"`,
			`templates.t.dynamic.args[5]: is empty`,
			`templates.t.dynamic.args[6]: is not a JSON pointer to an argument, such as "/MetadataOptions/HttpTokens"`,
			`templates.t.dynamic.args[7]: "list" is not an object in the template: permit it as a whole`,
			`templates.t.dynamic.args[8]: "text" is not an object in the template: permit it as a whole`,
			`templates.t.dynamic.args[9]: is not a JSON pointer to an argument, such as "/MetadataOptions/HttpTokens"`,
			`templates.t.dynamic.instance_types[1]: "[" is not a pattern such as "t4g.*"`,
			`templates.t.dynamic.instance_types[2]: "t4g.*" is there twice`,
			`templates.t.dynamic.max_size: cannot be negative`,
			`templates.t.dynamic.subnet_pools[1]: there is no subnet pool "q" (there are p)`,
			`templates.t.dynamic.load_balancers[0]: there is no load balancer "www"`,
			`templates.t.dynamic.vars[1]: "v" is there twice`}},
		{"unknown tenant", swap(`{"default": {`, `{@"prod": {}, "default": {`),
			[]string{`groups.prod: there is no tenant "prod"`}},
		{"load balancers", aws("", "", `, "load_balancers": ["a", @"zzz", @"g", @"a"]`,
			`, "load_balancers": {"a": {"provider": "aws", "target_group_arns": ["x", @"x"], "instance_group_name": @"y"},
			"g": {"provider": "gcp", "instance_group_name": "y"}, "h": @{"provider": "gcp", "target_group_arns": @["z"]}, @"i j": @{"provider": "aws"}}`), []string{
			`groups.default.g.load_balancers[1]: there is no load balancer "zzz" (there are a, g, h, i j)`,
			`groups.default.g.load_balancers[2]: is for provider gcp, but the shard's is aws`,
			`groups.default.g.load_balancers[3]: "a" is there twice`,
			`load_balancers.a.target_group_arns[1]: "x" is there twice`,
			`load_balancers.a.instance_group_name: is for provider gcp only`,
			`load_balancers.h.instance_group_name: is required for provider gcp`,
			`load_balancers.h.target_group_arns: is for provider aws only`,
			`load_balancers["i j"]: the name of a load balancer has letters, digits, dots, underscores and dashes, and begins with a letter or digit`,
			`load_balancers["i j"].target_group_arns: is required for provider aws`}},
		{"images",
			aws("", "", "",
				`, "images": {@"a-b": {"provider": "aws", "fallback": "ami"}, "c": @{"provider": "aws"}, "d": {"provider": @"gcp", "fallback": "x", "sort": @"size", "order": @"up"},
			"e": {"provider": "aws", "filters": [@{"name": "n"}]}}`), []string{
				`images.a-b: "a-b" has to be an identifier, for {{ .Image.name }}: letters, digits and underscores, no digit first`,
				`images.c.filters: is required where there is no fallback`,
				`images.d.provider: is for provider gcp, but the shard's is aws`,
				`images.d.sort: "size" is none of creation-date, name`, `images.d.order: "up" is none of asc, desc`,
				`images.e.filters[0].values: is required`}},

		{"images without owners on Google Cloud", gcp("",
			`, "images": {"a": @{"provider": "gcp", "filters": [{"name": "family", "values": ["debian-12"]}]},
			"b": {"provider": "gcp", "owners": ["o"], "filters": [{"name": "family", "values": ["debian-12"]}]},
			"c": {"provider": "gcp", "fallback": "x"}}`), []string{`images.a.owners: is required for provider gcp`}},

		// The tests of the clouds' packages cover all args. Here, a few cases show that the clouds' checks are called.
		{"args of the cloud", aws("", `, "args": {"ImageId": "i", "ImageID": @"x"}`,
			`, "args": {"EbsOptimized": @"yes"}`,
			`, "defaults": {"args": {"Placement": {"Tenacy": @"x"}}}`), []string{
			`templates.t.args.ImageID: RunInstances has no such field (did you mean "ImageId"?)`,
			`groups.default.g.args.EbsOptimized: want true or false, have "yes"`,
			`defaults.args.Placement.Tenacy: RunInstances has no such field (did you mean "Tenancy"?)`}},
		{"args of Google Cloud", gcp("", `, "defaults": {"args": {"scheduling": {"preemptable": @true}, "labels": {"team": @"`+
			strings.Repeat("x", 64)+`"}}}`), []string{
			`defaults.args.scheduling.preemptable: instances.insert has no such field (did you mean "preemptible"?)`,
			`defaults.args.labels.team: label "team": the value "` + strings.Repeat("x", 64) + `" has more than 63 characters, or ` +
				`others than lower-case letters, digits, underscores and dashes`}},
		{"names too long for labels of Google Cloud", strings.NewReplacer(`"example"`, `@"`+strings.Repeat("c", 31)+`"`,
			`"shard": "a"`, `"shard": @"`+strings.Repeat("s", 33)+`"`, `"default": {"g":`, `"default": {@"`+
				strings.Repeat("g", 33)+`":`).Replace(gcp("", "")), []string{
			`cluster.id: name "` + strings.Repeat("c", 31) + `" has 31 characters, at most 30 are allowed`,
			`server.shard: name "` + strings.Repeat("s", 33) + `" has 33 characters, at most 32 are allowed`,
			`groups.default.` + strings.Repeat("g", 33) + `: name "` + strings.Repeat("g", 33) +
				`" has 33 characters, at most 32 are allowed`}},
		{"region without a zone on Google Cloud", strings.Replace(gcp("", ""), `{"kind": "gcp", "region": "us-central1", "zone": "us-central1-a"}`,
			`@{"kind": "gcp", "region": "us-central1"}`, 1),
			[]string{`server.provider.zone: is required for provider gcp`}},
		{"options of the cloud", swap(`{"kind": "mock"}`, `{"kind": "tmux", "options": {"dri": @"x"}}`), []string{
			`server.provider.options.dri: provider tmux has no such option (there are agent, command, dir, max_vms, nodes_dir, session, socket)`}},

		{"certificate", cert(`"cn": "x", "ttl": @0`), []string{`certificates.c.ttl: must be more than 0`}},
		{"certificate without ttl", with("", "", "", `, "certificates": {"c": @{"kind": "server", "cn": "x"}}`),
			[]string{`certificates.c.ttl: must be more than 0`}},
		{"certificate for 90 days", cert(`"cn": "x", "ttl": 2160`), nil},
		{"certificate for more than 90 days", cert(`"cn": "x", "ttl": @2161`),
			[]string{`certificates.c.ttl: 2161 hours are more than 2160 (90 days), the longest that certificates last`}},
		{"certificate without a subject", with("", "", "", `, "certificates": {"c": @{"kind": "server", "ttl": 1}}`),
			[]string{`certificates.c: names no subject: set cn, dns, ip or uri`}},
		{"certificate kind", with("", "", "", `, "certificates": {"c": {"kind": @"peer", "cn": "x", "ttl": 1}}`),
			[]string{`certificates.c.kind: "peer" is none of client, server`}},
		{"certificate names",
			cert(`"dns": [@"a b", "*.example.com"], "ip": [@"1.2.3", "{{ .Instance.IP4 }}"], "uri": [@"x"], "organization": [@"{{ .Vars.o }}"], "ttl": 1`), []string{
				`certificates.c.dns[0]: "a b" is not a DNS name (rendered for group default/g)`,
				`certificates.c.ip[0]: "1.2.3" is not an IP address (rendered for group default/g)`,
				`certificates.c.uri[0]: "x" is not a URI (rendered for group default/g)`,
				`certificates.c.organization[0]: template: line 1:8: at <.Vars.o>: map has no entry for key "o" (rendered for group default/g)`}},

		{"template name", swap(`"templates": {"t"`, `"templates": {@"T": {"kind": "knd", "arch": "arm64"}, "t"`),
			[]string{`templates.T: name "T" may only have lower-case letters, digits and dashes`}},
		{"kind", swap(`"knd"`, `@"opr"`), []string{`templates.t.kind: kind "opr" is reserved for operators`}},
		{"kind form", swap(`"knd"`, `@"Knd"`),
			[]string{`templates.t.kind: prefix "Knd": want three lower-case letters`}},
		{"arch", swap(`"arm64"`, `@"aarch64"`), []string{`templates.t.arch: "aarch64" is none of arm64, amd64`}},
		{"no arch", swap(`{"kind": "knd", "arch": "arm64",`, `@{"kind": "knd",`),
			[]string{`templates.t.arch: is required`}},
		{"template pool", swap(`"subnet_pool": "p"`, `"subnet_pool": @"workers"`),
			[]string{`templates.t.subnet_pool: there is no subnet pool "workers" (there are p)`}},
		{"sizes", with("", `, "size": @-1`, `, "size": @-2, "max_surge": @0, "max_unhealthy": @"half"`, ""), []string{
			`templates.t.size: cannot be negative`, `groups.default.g.size: cannot be negative`,
			`groups.default.g.max_surge: must be more than 0`,
			`groups.default.g.max_unhealthy: "half" is neither a count such as "3" nor a percentage such as "40%"`}},
		{"userdata", with("", `, "userdata": @{"source": @"url", "encoding": @"gzip"}`, "", ""), []string{
			`templates.t.userdata.content: is required`,
			`templates.t.userdata.source: "url" is none of inline, storage`,
			`templates.t.userdata.encoding: "gzip" is none of plain, base64, gzip+base64`}},
		{"userdata in storage",
			with("", `, "userdata": {"source": "storage", "content": @"secret/{{ .Instance.Kind }}"}`, "", ""),
			[]string{
				`templates.t.userdata.content: "secret/knd" is not under files/ (rendered for group default/g)`}},
		{"userdata template", with("", `, "userdata": {"content": @"{{ .Nonce }} {{ .Instance.Id }}"}`, "", ""),
			[]string{
				`templates.t.userdata.content: template: line 1:25: there is no .Instance.Id; .Instance has ID, Kind, Arch, Type, Group, Tenant, Hostname, FQDN, IP4, IP6 (rendered for group default/g)`}},
		{"claims of an agent in certificates",
			cert(`"cn": @"{{ .Claimed.Hostname }}", "dns": ["a", @"{{ .Claimed.Hostname }}"], "ip": [@"{{ .Claimed.IP6 }}"], "ttl": 1`),
			[]string{
				`certificates.c.cn: template: line 1:11: ` + claimed,
				`certificates.c.dns[1]: template: line 1:11: ` + claimed,
				`certificates.c.ip[0]: template: line 1:11: ` + claimed}},
		{"claims of an agent in the key of an object", file("a",
			`"kind": "storage", "source": @"files/{{ .Claimed.Hostname }}"`),
			[]string{`templates.t.files.a.source: template: line 1:17: ` + claimed}},
		{"claims of an agent before there is one",
			with("", `, "userdata": {"content": @"{{ .Claimed.IP4 }}"}, "args": {"A": @"{{ .Claimed.IP4 }}"}`, "", ""),
			[]string{`templates.t.userdata.content: template: line 1:11: ` + claimed,
				`templates.t.args.A: template: line 1:11: ` + claimed}},
		{"claims of an agent in the content of files", with("",
			`, "files": {"a.env": {"kind": "env", "vars": {"A": "{{ .Claimed.Hostname }}"}},
			"b.json": {"kind": "json", "json": {"a": "{{ .Claimed.IP4 }}"}},
			"c.pub": {"kind": "string", "content": "{{ .Claimed.IP6 }}"}}`, "", ""), nil},
		{"args", with("", `, "args": {"A": {"b": [1, @"{{ .Nonce }}"]}}`, `, "args": {"C": @"{{"}`,
			`, "defaults": {"args": {"A": {"c": @"{{ .Vars.x }}"}, "C": "{{ .Overridden }}"}}`), []string{
			`templates.t.args.A.b[1]: template: line 1:3: there is no .Nonce; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image (rendered for group default/g)`,
			`groups.default.g.args.C: template: line 1: unclosed action (rendered for group default/g)`,
			`defaults.args.A.c: template: line 1:8: at <.Vars.x>: map has no entry for key "x" (rendered for group default/g)`}},
		{"vars of another group", with("", `, "args": {"A": @"{{ .Vars.x }}"}`,
			`, "vars": {"x": "1"}}, "h": {"template": "t"`, ""), []string{
			`templates.t.args.A: template: line 1:8: at <.Vars.x>: map has no entry for key "x" (rendered for group default/h)`}},
		{"unused template",
			with("",
				`}, "u": {"kind": "knu", "arch": "arm64", "args": {"A": "{{ .Vars.brought }}", "B": @"{{ .Vas.x }}"}`,
				"", ""), []string{
				`templates.u.args.B: template: line 1:7: there is no .Vas; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image`}},
		{"image", with("", `, "args": {"I": "{{ .Image.deb }}", "J": @"{{ .Image.rhel }}"}`, "",
			`, "images": {"deb": {"provider": "mock", "fallback": "x"}}`), []string{
			`templates.t.args.J: template: line 1:9: at <.Image.rhel>: map has no entry for key "rhel" (rendered for group default/g)`}},

		{"file kind", file("a", `"kind": @"text", "content": "x"`), []string{
			`templates.t.files.a.kind: "text" is none of certificate, secret, storage, env, json, string`}},
		{"no file kind", with("", `, "files": {"a": @{"content": "x"}}`, "", ""),
			[]string{`templates.t.files.a.kind: is required`}},
		{"file name", with("", `, "files": {@"../a": {"kind": "string"}}`, "", ""),
			[]string{
				`templates.t.files["../a"]: the name of a file has letters, digits, dots, underscores and dashes, and begins with a letter or digit`}},
		{"certificate file", with("", `, "files": {"a.crt": @{"kind": "certificate"}}`, "", ""), []string{
			`templates.t.files["a.crt"].template: is required for files of kind certificate`,
			`=templates.t.files["a.crt"].key: is required for files of kind certificate`}},
		{"certificate file's key",
			file("a.crt",
				`"kind": "certificate", "template": @"x", "key": {"source": @"server", "name": @"a.key", "algorithm": @"rsa"}`), []string{
				`templates.t.files["a.crt"].template: there is no certificate "x"`,
				`templates.t.files["a.crt"].key.source: "server" is none of agent`,
				`templates.t.files["a.crt"].key.name: "a.key" does not end in .pub`,
				`templates.t.files["a.crt"].key.algorithm: "rsa" is none of ed25519, ecdsa-p256`}},
		{"secret file", file("a", `"kind": "secret", "source": @"ca.key"`),
			[]string{`templates.t.files.a.source: "ca.key" is the cluster's own and is never delivered`}},
		{"secret file with the workload CA", file("a", `"kind": "secret", "source": @"workload-ca.key"`),
			[]string{`templates.t.files.a.source: "workload-ca.key" is the cluster's own and is never delivered`}},
		{"secret file's name", file("a", `"kind": "secret", "source": @"a/b"`),
			[]string{
				`templates.t.files.a.source: secret name must be of [A-Za-z0-9._-] with a letter or digit at both ends`}},
		{"storage file", file("a", `"kind": "storage", "source": @"files/../config/{{ .Server.Shard }}.jsonc"`),
			[]string{
				`templates.t.files.a.source: bucket key "files/../config/a.jsonc": file: name is empty or has an empty, . or .. segment, or one longer than 200 bytes (rendered for group default/g)`}},
		{"env file",
			with("",
				`, "files": {"a.env": {"kind": "env", "vars": {@"A-B": "x", "C": @"{{ .Foo }}", "D": @"{{ .Vars.d }}"}}}`, "", ""), []string{
				`templates.t.files["a.env"].vars.A-B: "A-B" is not the name of an environment variable`,
				`templates.t.files["a.env"].vars.C: template: line 1:3: there is no .Foo; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image, .Claimed (rendered for group default/g)`,
				`templates.t.files["a.env"].vars.D: template: line 1:8: at <.Vars.d>: map has no entry for key "d" (rendered for group default/g)`}},
		{"env value", file("a.env", `"kind": "env", "vars": @{"A": "a\u0000b"}`),
			[]string{
				`templates.t.files["a.env"].vars: env.A: the value has a NUL character (rendered for group default/g)`}},
		{"json file", file("a.json", `"kind": "json", "json": {"a": ["x", @"{{ .Foo }}"]}`), []string{
			`templates.t.files["a.json"].json.a[1]: template: line 1:3: there is no .Foo; there are .Instance, .Cluster, .Server, .Provider, .Vars, .Image, .Claimed (rendered for group default/g)`}},
		{"json file without json", with("", `, "files": {"a": @{"kind": "json", "content": @"{}"}}`, "", ""), []string{
			`templates.t.files.a.json: is required for files of kind json`,
			`templates.t.files.a.content: is not for files of kind json (those have json)`}},
		{"empty files", with("", `, "files": {"a": {"kind": "string"}, "b.env": {"kind": "env"}}`, "", ""), nil},

		{"group name", swap(`"g": {`, `@"G_": {`),
			[]string{`groups.default.G_: name "G_" may only have lower-case letters, digits and dashes`}},
		{"no template", swap(`{"template": "t"}`, `@{"size": 1}`), []string{`groups.default.g.template: is required`}},
		{"group pool", with("", "", `, "subnet_pool": @"q"`, ""), []string{
			`groups.default.g.subnet_pool: there is no subnet pool "q" (there are p)`}},
		{"no pool", strings.Replace(strings.Replace(with("", "", "", ""), `, "subnet_pool": "p"}},`, `}},`, 1),
			`{"template"`, `@{"template"`, 1), []string{
			`groups.default.g.subnet_pool: is required: neither the group nor its template has one`}},
		{"no type", strings.Replace(strings.Replace(aws("", "", "", ""), `, "instance_type": "t4g.nano"`, "", 1),
			`{"template"`, `@{"template"`, 1), []string{
			`groups.default.g.instance_type: is required: neither the group nor its template has one`}},
		{"types", with("", `, "instance_types": ["a", @"a"]`, `, "instance_type": "b", "instance_types": ["c", @""]`,
			""), []string{`templates.t.instance_types[1]: "a" is there twice`,
			`groups.default.g.instance_types[1]: is empty`}},
		{"deleted", with("", "", `, "deleted": @true`, ""),
			[]string{`groups.default.g.deleted: is for dynamic groups, in groups/; remove the group instead`}},
		{"nameless variable", with("", "", `, "vars": {@"": "x"}`, ""),
			[]string{`groups.default.g.vars[""]: the name of a variable is empty`}},
	} {
		src, want := marked(tt.src, tt.want)
		s, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s\n%s", tt.name, diff, src)
		}
		if (s == nil) != (len(want) > 0) {
			t.Errorf("%s: the shard is %v", tt.name, s)
		}
	}
}

func TestOneMistakeIsReportedOnce(t *testing.T) {
	for _, tt := range []struct {
		src  string
		want []string
	}{
		// A misspelt field is one problem. The correct field is not reported as missing, and references to it are not
		// reported as wrong.
		{strings.Replace(with("", "", "", ""), `"templates"`, `@"templatez"`, 1),
			[]string{`templatez: there is no such field (did you mean "templates"?)`}},
		{strings.Replace(with("", "", "", ""), `"subnet_pools"`, `@"subnet_pool"`, 1),
			[]string{`server.subnet_pool: there is no such field (did you mean "subnet_pools"?)`}},
		{with("", `, "vars": @["x"], "args": {"a": "{{ .Vars.x }}"}`, "", ""),
			[]string{`templates.t.vars: want an object, have a list`}},
		{with("", `, @"vrs": {"x": "1"}, "args": {"a": "{{ .Vars.x }}"}`, "", ""),
			[]string{`templates.t.vrs: there is no such field (did you mean "vars"?)`}},
		{with("", `, "vars": {"x": @1}, "args": {"a": "{{ .Vars.x }}"}`, "", ""),
			[]string{`templates.t.vars.x: want a text, have a number (put it in quotes: "1")`}},
		{with(`, "leader_election": {"renew_interval": @"20", "lease_duration": "10s"}`, "", "", ""),
			[]string{`server.leader_election.renew_interval: "20" is not a duration such as "30s", "1h30m" or "21d"`}},
		{with("", "", `, "subnet_pool": @7`, ""),
			[]string{`groups.default.g.subnet_pool: want a text, have a number (put it in quotes: "7")`}},
	} {
		src, want := marked(tt.src, tt.want)
		_, problems := Parse("f", []byte(src))
		if diff := cmp.Diff(want, lines(problems)); diff != "" {
			t.Errorf("(-want +got)\n%s\n%s", diff, src)
		}
	}
}

// validate returns the problems of a shard, without positions.
func validate(s *Shard) Problems { return (&checker{found: check(s)}).problems() }

func TestPaths(t *testing.T) {
	for _, elements := range [][]any{{"a"}, {"a", "b-c", "$d_9"}, {"a", 0, 12, "b"}, {"a", "x.y", "z"}, {"x y"},
		{`a"]`, `\"`, ""}, {"a", "[0]", 3, "é"}} {
		path := JoinPath(elements...)
		got, err := SplitPath(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if diff := cmp.Diff(elements, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
		if got, want := parent(path), JoinPath(elements[:len(elements)-1]...); got != want {
			t.Errorf("parent(%s) = %s, want %s", path, got, want)
		}
		if !within(path, parent(path)) || within(parent(path), path) {
			t.Errorf("%s is not within %s", path, parent(path))
		}
	}
	for _, bad := range []string{".a", "a.", "a..b", "a[", "a[x]", "a[-1]", "a[01]", `a["b"]`, `a["x.y"`, `a["x.y]`,
		"a[0]b", "a b", "[0", `a["\z"]`} {
		if got, err := SplitPath(bad); err == nil {
			t.Errorf("SplitPath(%q) = %v", bad, got)
		}
	}
	if within("ab", "a") || !within("a.b", "a") || !within("a[0]", "a") || !within("a", "") {
		t.Error("within takes a name's beginning for the name")
	}
}

func TestProblems(t *testing.T) {
	ps := Problems{{Path: "a", Message: "m", Warning: true}, {File: "f", Message: "n"}}
	if diff := cmp.Diff([]string{"warning: a: m", "f: n"}, lines(ps)); diff != "" {
		t.Error(diff)
	}
	if ps.Err() == nil || ps.Warnings().Err() != nil || Problems(nil).Err() != nil {
		t.Error("Err does not tell warnings from errors")
	}
	if got := fmt.Sprint(ps.Err()); got != "f: n" {
		t.Errorf("Err() = %s", got)
	}
}

func TestValidateStorageSource(t *testing.T) {
	if err := ValidateStorageSource("files/etc/app.conf"); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"", "files/", "files", "/files/a", "files/../config/a.jsonc", "files//a",
		"cluster/secret/ca.key", "FILES/a", "files/a\x00"} {
		if ValidateStorageSource(key) == nil {
			t.Errorf("%q was accepted", key)
		}
	}
}

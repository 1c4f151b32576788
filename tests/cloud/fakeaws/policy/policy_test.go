package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/policy"
)

var session = policy.Caller{
	ARN:     "arn:aws:sts::123456789012:assumed-role/server/i-0abc",
	RoleARN: "arn:aws:iam::123456789012:role/team/server",
	Account: "123456789012",
}

func parse(t *testing.T, kind policy.Kind, text string) *policy.Document {
	t.Helper()
	if !strings.HasPrefix(text, "{") {
		t.Fatalf("not a document: %s", text)
	}
	doc, err := policy.Parse(kind, text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return doc
}

// doc wraps statements in a document of the current version.
func doc(statements ...string) string {
	return `{"Version":"2012-10-17","Statement":[` + strings.Join(statements, ",") + `]}`
}

// TestEvaluationLogic checks the decisions on AWS's page about evaluation logic within an account.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic_policy-eval-basics.html
func TestEvaluationLogic(t *testing.T) {
	const (
		allow       = `{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		deny        = `{"Effect":"Deny","Action":"s3:*","Resource":"*"}`
		other       = `{"Effect":"Allow","Action":"ec2:*","Resource":"*"}`
		toSession   = `{"Effect":"Allow","Principal":{"AWS":"arn:aws:sts::123456789012:assumed-role/server/i-0abc"},"Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		toRole      = `{"Effect":"Allow","Principal":{"AWS":["arn:aws:iam::123456789012:role/team/server"]},"Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		toOther     = `{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::123456789012:role/other"},"Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		toAccount   = `{"Effect":"Allow","Principal":{"AWS":"123456789012"},"Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		toRoot      = `{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::123456789012:root"},"Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		toAll       = `{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::reports/*"}`
		denyAll     = `{"Effect":"Deny","Principal":{"AWS":"*"},"Action":"s3:*","Resource":"*"}`
		noIdentity  = "because no identity-based policy allows the s3:GetObject action"
		explicitID  = "with an explicit deny in an identity-based policy"
		explicitRes = "with an explicit deny in a resource-based policy"
	)
	for name, c := range map[string]struct {
		identity, resource []string
		root               bool
		want               string // "" means allowed
	}{
		"nothing allows":                  {want: noIdentity},
		"allowed":                         {identity: []string{allow}},
		"something else allowed":          {identity: []string{other}, want: noIdentity},
		"explicit deny wins":              {identity: []string{allow, deny}, want: explicitID},
		"explicit deny wins in any order": {identity: []string{deny, allow}, want: explicitID},
		"resource names the role":         {resource: []string{toRole}},
		"resource names another role":     {resource: []string{toOther}, want: noIdentity},
		"resource names the account":      {resource: []string{toAccount}, want: noIdentity},
		"resource and identity name it":   {resource: []string{toRoot}, identity: []string{allow}},
		"resource is for all":             {resource: []string{toAll}},
		"resource denies": {resource: []string{toSession, denyAll},
			identity: []string{allow}, want: explicitRes},
		"identity denies what the resource allows": {resource: []string{toSession}, identity: []string{deny},
			want: explicitID},
		"the account":                         {root: true},
		"the account, denied by the resource": {root: true, resource: []string{denyAll}, want: explicitRes},
	} {
		t.Run(name, func(t *testing.T) {
			var p policy.Policies
			for _, s := range c.identity {
				p.Identity = append(p.Identity, parse(t, policy.Identity, doc(s)))
			}
			if c.resource != nil {
				p.Resource = parse(t, policy.Resource, doc(c.resource...))
			}
			r := policy.Request{Action: "s3:GetObject", Resource: "arn:aws:s3:::reports/2026.csv", Caller: session}
			if c.root {
				r.Caller = policy.Caller{ARN: "arn:aws:iam::123456789012:root", Account: "123456789012"}
			}
			d := policy.Evaluate(p, r)
			if d.Allowed != (c.want == "") || !strings.HasSuffix(d.Reason, c.want) ||
				d.Explicit != strings.HasPrefix(c.want, "with an explicit") {
				t.Fatalf("got %+v, want %q", d, c.want)
			}
			if c.want != "" && !strings.HasPrefix(d.Reason, "User: "+r.Caller.ARN+
				" is not authorized to perform: s3:GetObject on resource: arn:aws:s3:::reports/2026.csv ") {
				t.Fatalf("reason %q", d.Reason)
			}
		})
	}
}

// TestStatements matches one Allow statement with one request in each case. Sources:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_action.html, …_notaction.html,
// …_resource.html, …_notresource.html.
func TestStatements(t *testing.T) {
	const vm = "arn:aws:ec2:us-west-2:123456789012:instance/i-1"
	for _, c := range []struct {
		elements, action, resource string
		want                       bool
	}{
		{`"Action":"ec2:RunInstances","Resource":"*"`, "ec2:RunInstances", vm, true},
		{`"Action":"EC2:runinstances","Resource":"*"`, "ec2:RunInstances", vm, true},
		{`"Action":"ec2:Run","Resource":"*"`, "ec2:RunInstances", vm, false},
		{`"Action":["iam:*AccessKey*"],"Resource":"*"`, "iam:UpdateAccessKey", "*", true},
		{`"Action":"ec2:Describe????","Resource":"*"`, "ec2:DescribeVpcs", "*", true},
		{`"Action":"ec2:Describe????","Resource":"*"`, "ec2:DescribeSubnets", "*", false},
		{`"Action":"*","Resource":"*"`, "sts:AssumeRole", "*", true},
		{`"Action":"ec2*:x","Resource":"*"`, "", "", false}, // a malformed one, below
		{`"NotAction":"iam:*","Resource":"*"`, "ec2:RunInstances", vm, true},
		{`"NotAction":["ec2:*","iam:*"],"Resource":"*"`, "iam:GetRole", "*", false},
		{`"NotAction":"s3:DeleteBucket","Resource":"arn:aws:s3:::*"`, "s3:GetObject", "arn:aws:s3:::b/k", true},
		{`"NotAction":"s3:DeleteBucket","Resource":"arn:aws:s3:::*"`, "ec2:RunInstances", vm, false},
		{`"Action":"*","NotResource":["arn:aws:s3:::hr","arn:aws:s3:::hr/*"]`, "s3:GetObject", "arn:aws:s3:::hr/pay",
			false},
		{`"Action":"*","NotResource":["arn:aws:s3:::hr","arn:aws:s3:::hr/*"]`, "s3:GetObject", "arn:aws:s3:::it/pay",
			true},
		{`"Action":"*","Resource":"arn:aws:ec2:us-west-2:123456789012:instance/*"`, "ec2:TerminateInstances", vm, true},
		{`"Action":"*","Resource":"arn:aws:ec2:*:*:instance/i-?"`, "ec2:TerminateInstances", vm, true},
		{`"Action":"*","Resource":"arn:aws:ec2:*:instance/*"`, "ec2:TerminateInstances", vm, false},
		{`"Action":"*","Resource":"arn:aws:ec2:us-east-1:123456789012:instance/*"`, "ec2:TerminateInstances", vm,
			false},
		{`"Action":"*","Resource":"arn:aws:ec2"`, "ec2:TerminateInstances", vm, true},
		{`"Action":"*","Resource":"arn:aws:ec2:us-west-2:123456789012:instance"`, "ec2:TerminateInstances", vm, false},
		{`"Action":"*","Resource":"arn:aws:ec2:us-west-2:123456789012:Instance/*"`, "ec2:TerminateInstances", vm,
			false},
		{`"Action":"*","Resource":"arn:aws:ec2:us-west-2:123456789012:*"`, "ec2:DescribeVpcs", "*", false},
		{`"Action":"*","Resource":"arn:aws:s3:::b/shard/*/leader.json"`, "s3:PutObject",
			"arn:aws:s3:::b/shard/a/b/leader.json", true},
		{`"Action":"*","Resource":"arn:aws:ssm:us-west-2:123456789012:parameter/a*"`, "ssm:GetParameter",
			"arn:aws:ssm:us-west-2:123456789012:parameter/a:b", true},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${aws:username}/*"`, "s3:PutObject",
			"arn:aws:s3:::b/${aws:username}/x", false},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${aws:username, 'all'}/*"`, "s3:PutObject", "arn:aws:s3:::b/all/x",
			true},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${aws:PrincipalTag/Team , 'all' }/*"`, "s3:PutObject",
			"arn:aws:s3:::b/*/x", true},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${aws:PrincipalTag/team}/*"`, "s3:PutObject", "arn:aws:s3:::b/blue/x",
			false},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${*}${?}${$}"`, "s3:PutObject", "arn:aws:s3:::b/*?$", true},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${*}"`, "s3:PutObject", "arn:aws:s3:::b/x", false},
		{`"Action":"*","Resource":"arn:aws:s3:::b/${aws:TagKeys}"`, "s3:PutObject", "arn:aws:s3:::b/a", false},
	} {
		if c.action == "" {
			if _, err := policy.Parse(policy.Identity, doc(`{"Effect":"Allow",`+c.elements+`}`)); err == nil {
				t.Errorf("%s was taken", c.elements)
			}
			continue
		}
		p := policy.Policies{Identity: []*policy.Document{parse(t, policy.Identity,
			doc(`{"Effect":"Allow",`+c.elements+`}`))}}
		d := policy.Evaluate(p, policy.Request{
			Action: c.action, Resource: c.resource, Caller: session,
			Context: policy.Context{"aws:PrincipalTag/team": {"*"}, "aws:TagKeys": {"a", "b"}},
		})
		if d.Allowed != c.want {
			t.Errorf("%s on %s with {%s}: %v", c.action, c.resource, c.elements, d)
		}
	}

	old := parse(t, policy.Identity,
		`{"Version":"2008-10-17","Statement":{"Effect":"Allow","Action":"*","Resource":"arn:aws:s3:::b/${*}"}}`)
	d := policy.Evaluate(policy.Policies{Identity: []*policy.Document{old}},
		policy.Request{Action: "s3:PutObject", Resource: "arn:aws:s3:::b/${x}", Caller: session})
	if !d.Allowed {
		t.Error("the older version read a variable")
	}
}

// TestConditions checks the operators in AWS's tables of condition operators, each in a policy with one condition.
// Sources:
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-logic-multiple-context-keys-or-values.html
// https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
func TestConditions(t *testing.T) {
	keys := policy.Context{
		"aws:RequestTag/Cluster":  {"alpha"},
		"aws:ResourceTag/Cluster": {"alpha"},
		"aws:TagKeys":             {"Cluster", "Name"},
		"aws:SecureTransport":     {"true"},
		"aws:SourceIp":            {"203.0.113.42"},
		"aws:SourceArn":           {"arn:aws:ec2:us-west-2:123456789012:instance/i-1"},
		"aws:CurrentTime":         {"2026-05-01T12:00:00Z"},
		"aws:EpochTime":           {"1777636800"},
		"aws:PrincipalArn":        {"arn:aws:iam::123456789012:role/team/server"},
		"aws:userid":              {"AROAEXAMPLE:i-0abc"},
		"iam:PassedToService":     {"ec2.amazonaws.com"},
		"ec2:MetadataHttpTokens":  {"required"},
		"s3:max-keys":             {"10"},
		"s3:prefix":               {"shard/a/"},
		"x:star":                  {"a*c"},
		"x:binary":                {"QmluYXJ5"},
	}
	for condition, want := range map[string]bool{
		`"StringEquals":{"aws:RequestTag/Cluster":"alpha"}`:                                        true,
		`"StringEquals":{"aws:requesttag/cluster":"alpha"}`:                                        true,
		`"StringEquals":{"aws:RequestTag/Cluster":"Alpha"}`:                                        false,
		`"StringEquals":{"aws:RequestTag/Cluster":"al*"}`:                                          false,
		`"StringEquals":{"aws:RequestTag/Cluster":["beta","alpha"]}`:                               true,
		`"StringEquals":{"aws:RequestTag/Cluster":"${aws:ResourceTag/Cluster}"}`:                   true,
		`"StringEquals":{"aws:RequestTag/Other":"alpha"}`:                                          false,
		`"StringEqualsIfExists":{"aws:RequestTag/Other":"alpha"}`:                                  true,
		`"StringEqualsIfExists":{"aws:RequestTag/Cluster":"beta"}`:                                 false,
		`"StringEquals":{"aws:RequestTag/Cluster":"alpha","ec2:MetadataHttpTokens":"optional"}`:    false,
		`"StringNotEquals":{"aws:RequestTag/Cluster":"beta"}`:                                      true,
		`"StringNotEquals":{"aws:RequestTag/Cluster":["beta","alpha"]}`:                            false,
		`"StringNotEquals":{"aws:RequestTag/Other":"beta"}`:                                        true,
		`"StringNotEquals":{"ec2:MetadataHttpTokens":"required"}`:                                  false,
		`"StringEqualsIgnoreCase":{"aws:RequestTag/Cluster":"ALPHA"}`:                              true,
		`"StringNotEqualsIgnoreCase":{"aws:RequestTag/Cluster":"ALPHA"}`:                           false,
		`"StringLike":{"s3:prefix":["config/*","shard/a*"]}`:                                       true,
		`"StringLike":{"s3:prefix":"shard/?"}`:                                                     false,
		`"StringLike":{"x:star":"a${*}c"}`:                                                         true,
		`"StringLike":{"aws:RequestTag/Cluster":"${x:star}"}`:                                      false,
		`"StringLike":{"aws:RequestTag/Cluster":"${aws:missing}"}`:                                 false,
		`"StringNotLike":{"aws:RequestTag/Cluster":"${aws:missing}"}`:                              false,
		`"StringNotLike":{"s3:prefix":"shard/*"}`:                                                  false,
		`"StringNotLike":{"aws:userid":"*:i-*"}`:                                                   false,
		`"Bool":{"aws:SecureTransport":"true"}`:                                                    true,
		`"Bool":{"aws:SecureTransport":false}`:                                                     false,
		`"Bool":{"aws:MultiFactorAuthPresent":"false"}`:                                            false,
		`"BoolIfExists":{"aws:MultiFactorAuthPresent":"false"}`:                                    true,
		`"Null":{"aws:RequestTag/Cluster":"false"}`:                                                true,
		`"Null":{"aws:RequestTag/Cluster":true}`:                                                   false,
		`"Null":{"aws:TokenIssueTime":"true"}`:                                                     true,
		`"Null":{"aws:TokenIssueTime":"false"}`:                                                    false,
		`"NumericLessThanEquals":{"s3:max-keys":10}`:                                               true,
		`"NumericLessThan":{"s3:max-keys":"10"}`:                                                   false,
		`"NumericGreaterThan":{"s3:max-keys":"9.5"}`:                                               true,
		`"NumericNotEquals":{"s3:max-keys":"10"}`:                                                  false,
		`"NumericEquals":{"s3:prefix":"10"}`:                                                       false,
		`"DateGreaterThan":{"aws:CurrentTime":"2026-04-30"}`:                                       true,
		`"DateLessThan":{"aws:CurrentTime":"2026-05-01T12:00:00Z"}`:                                false,
		`"DateLessThanEquals":{"aws:CurrentTime":"2026-05-01T12:00:00Z"}`:                          true,
		`"DateEquals":{"aws:EpochTime":"2026-05-01T12:00:00Z"}`:                                    true,
		`"DateLessThan":{"aws:CurrentTime":"1777636801"}`:                                          true,
		`"IpAddress":{"aws:SourceIp":"203.0.113.0/24"}`:                                            true,
		`"IpAddress":{"aws:SourceIp":["2001:db8::/32","203.0.113.42"]}`:                            true,
		`"NotIpAddress":{"aws:SourceIp":"203.0.113.0/24"}`:                                         false,
		`"NotIpAddress":{"aws:VpcSourceIp":"203.0.113.0/24"}`:                                      true,
		`"ArnLike":{"aws:SourceArn":"arn:aws:ec2:*:123456789012:instance/*"}`:                      true,
		`"ArnLike":{"aws:SourceArn":"arn:aws:ec2:*:instance/*"}`:                                   false,
		`"ArnEquals":{"aws:PrincipalArn":"arn:aws:iam::123456789012:role/*"}`:                      true,
		`"ArnNotEquals":{"aws:PrincipalArn":"arn:aws:iam::123456789012:role/team/server"}`:         false,
		`"ArnNotLike":{"aws:SourceArn":"arn:aws:s3:::*"}`:                                          true,
		`"StringEquals":{"iam:PassedToService":"ec2.amazonaws.com"}`:                               true,
		`"StringEquals":{"iam:PassedToService":["ec2.amazonaws.com.cn","lambda.amazonaws.com"]}`:   false,
		`"BinaryEquals":{"x:binary":"QmluYXJ5"}`:                                                   true,
		`"ForAllValues:StringEquals":{"aws:TagKeys":["Cluster","Name","Group"]}`:                   true,
		`"ForAllValues:StringEquals":{"aws:TagKeys":["Cluster"]}`:                                  false,
		`"ForAllValues:StringLike":{"aws:TagKeys":["C*","N*"]}`:                                    true,
		`"ForAllValues:StringEquals":{"aws:missing":["Cluster"]}`:                                  true,
		`"ForAllValues:StringNotEquals":{"aws:TagKeys":["Group"]}`:                                 true,
		`"ForAllValues:StringNotEquals":{"aws:TagKeys":["Name"]}`:                                  false,
		`"ForAnyValue:StringEquals":{"aws:TagKeys":["Name","Group"]}`:                              true,
		`"ForAnyValue:StringEquals":{"aws:TagKeys":["Group"]}`:                                     false,
		`"ForAnyValue:StringEquals":{"aws:missing":["Cluster"]}`:                                   false,
		`"ForAnyValue:StringNotEquals":{"aws:missing":["Cluster"]}`:                                false,
		`"ForAnyValue:StringNotEquals":{"aws:TagKeys":["Name"]}`:                                   true,
		`"ForAnyValue:StringNotEquals":{"aws:TagKeys":["Name","Cluster"]}`:                         false,
		`"ForAnyValue:StringEqualsIfExists":{"aws:missing":["Cluster"]}`:                           true,
		`"StringEquals":{"s3:prefix":"shard/a/"},"NumericEquals":{"s3:max-keys":"11"}`:             false,
		`"StringEquals":{"s3:prefix":"shard/a/"},"Null":{"aws:SourceVpc":"true"}`:                  true,
		`"ForAllValues:StringEquals":{"aws:TagKeys":"Name"},"Null":{"aws:TagKeys":"false"}`:        false,
		`"StringLike":{"aws:PrincipalArn":"arn:aws:iam::123456789012:role/${aws:none, 'team'}/*"}`: true,
	} {
		for _, effect := range []string{"Allow", "Deny"} {
			p := policy.Policies{Identity: []*policy.Document{
				parse(t, policy.Identity, doc(fmt.Sprintf(`{"Effect":%q,"Action":"*","Resource":"*","Condition":{%s}}`,
					effect, condition))),
				parse(t, policy.Identity, doc(`{"Effect":"Allow","Action":"x:`+effect+`","Resource":"*"}`)),
			}}
			action := "x:y"
			if effect == "Deny" {
				action = "x:Deny" // the other document allows it
			}
			d := policy.Evaluate(p, policy.Request{Action: action, Resource: "*", Caller: session, Context: keys})
			if matched := d.Allowed == (effect == "Allow"); matched != want {
				t.Errorf("%s with %s: %+v", effect, condition, d)
			}
		}
	}
}

// TestTrust checks AssumeRole.
// Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_principal.html
func TestTrust(t *testing.T) {
	may := doc(`{"Effect":"Allow","Action":"sts:AssumeRole","Resource":"arn:aws:iam::123456789012:role/agent"}`)
	root := policy.Caller{ARN: "arn:aws:iam::123456789012:root", Account: "123456789012"}
	for name, c := range map[string]struct {
		caller   policy.Caller
		trust    string
		identity string
		want     bool
	}{
		"service": {policy.Caller{Service: "ec2.amazonaws.com"},
			`"Allow","Principal":{"Service":"ec2.amazonaws.com"}`, "", true},
		"another service": {policy.Caller{Service: "ec2.amazonaws.com"},
			`"Allow","Principal":{"Service":["lambda.amazonaws.com"]}`, "", false},
		"service is not the root": {policy.Caller{Service: "ec2.amazonaws.com"},
			`"Allow","Principal":{"AWS":"123456789012"}`, "", false},
		"role is not a service": {session, `"Allow","Principal":{"Service":"ec2.amazonaws.com"}`, may, false},
		"named role": {session,
			`"Allow","Principal":{"AWS":"arn:aws:iam::123456789012:role/team/server"}`, "", true},
		"account, role may":     {session, `"Allow","Principal":{"AWS":"123456789012"}`, may, true},
		"account, role may not": {session, `"Allow","Principal":{"AWS":"123456789012"}`, "", false},
		"root of the account":   {root, `"Allow","Principal":{"AWS":"arn:aws:iam::123456789012:root"}`, "", true},
		"root is not trusted":   {root, `"Allow","Principal":{"Service":"ec2.amazonaws.com"}`, "", false},
		"condition does not hold": {root,
			`"Allow","Condition":{"StringEquals":{"sts:ExternalId":"x"}},"Principal":{"AWS":"123456789012"}`, "",
			false},
		"deny trusts no principal": {root, `"Deny","Principal":{"AWS":"123456789012"}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy.Policies{Resource: parse(t, policy.Trust, doc(`{"Action":"sts:AssumeRole","Effect":`+c.trust+
				`}`))}
			if c.identity != "" {
				p.Identity = []*policy.Document{parse(t, policy.Identity, c.identity)}
			}
			d := policy.EvaluateTrust(p, policy.Request{Action: "sts:AssumeRole",
				Resource: "arn:aws:iam::123456789012:role/agent", Caller: c.caller})
			if d.Allowed != c.want {
				t.Fatalf("got %+v", d)
			}
		})
	}
}

func TestParse(t *testing.T) {
	got := parse(t, policy.Resource, `{
		"Version": "2012-10-17", "Id": "both",
		"Statement": {
			"Sid": "DenyPlain", "Effect": "Deny", "Principal": {"AWS": ["*", "123456789012"], "Service": "ec2.amazonaws.com"}, "NotAction": "s3:GetObject",
			"NotResource": ["arn:aws:s3:::b"], "Condition": {"ForAnyValue:StringLikeIfExists": {"aws:TagKeys": ["a", 1, true]}}
		}}`)
	want := &policy.Document{Version: "2012-10-17", ID: "both", Statements: []policy.Statement{{
		SID: "DenyPlain", Deny: true, Principals: &policy.Principals{Any: true, AWS: []string{"123456789012"},
			Services: []string{"ec2.amazonaws.com"}},
		NotActions: []string{"s3:GetObject"}, NotResources: []string{"arn:aws:s3:::b"},
		Conditions: []policy.Condition{{Operator: "StringLike", Set: "ForAnyValue", IfExists: true, Key: "aws:TagKeys",
			Values: []string{"a", "1", "true"}}},
	}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}

	const all = `"Effect":"Allow","Action":"*","Resource":"*"`
	for text, part := range map[string]string{
		``:                      "syntax errors",
		`[]`:                    "not a JSON object",
		`{}`:                    "no statement",
		`{"Statement":[]}`:      "no statement",
		`{"Statement":"x"}`:     "not an object",
		doc(`{`+all+`}`) + `{}`: "more after",
		`{"Version":"2012-10-18","Statement":{` + all + `}}`:                      "valid version",
		`{"Version":"2012-10-17","Version":"2012-10-17"}`:                         "twice",
		`{"version":"2012-10-17","Statement":{` + all + `}}`:                      "unknown element",
		`{"Id":1,"Statement":{` + all + `}}`:                                      "Id",
		doc(`{` + all + `,"Principals":"*"}`):                                     "unknown element",
		doc(`{` + all + `,"NotPrincipal":"*"}`):                                   "not supported",
		doc(`{` + all + `,"Principal":"*"}`):                                      "should not specify a principal",
		doc(`{` + all + `,"Sid":"a-b"}`):                                          "Sid",
		doc(`{"Sid":"a",`+all+`}`, `{"Sid":"a",`+all+`}`):                         "unique",
		doc(`{"Effect":"allow","Action":"*","Resource":"*"}`):                     "neither Allow nor Deny",
		doc(`{"Action":"*","Resource":"*"}`):                                      "Effect",
		doc(`{"Effect":"Allow","Resource":"*"}`):                                  "must contain actions",
		doc(`{"Effect":"Allow","Action":[],"Resource":"*"}`):                      "empty",
		doc(`{` + all + `,"NotAction":"s3:*"}`):                                   "must contain actions",
		doc(`{"Effect":"Allow","Action":"RunInstances","Resource":"*"}`):          "prefaced by a vendor",
		doc(`{"Effect":"Allow","Action":"*"}`):                                    "must contain resources",
		doc(`{"Effect":"Allow","Action":"*","Resource":"bucket/*"}`):              "ARN format",
		doc(`{` + all + `,"Condition":{"StringSame":{"aws:a":"b"}}}`):             "invalid condition type",
		doc(`{` + all + `,"Condition":{"ForSomeValues:StringLike":{"a:b":"b"}}}`): "invalid condition type",
		doc(`{` + all + `,"Condition":{"NullIfExists":{"aws:a":"true"}}}`):        "invalid condition type",
		doc(`{` + all + `,"Condition":{"StringLike":{"prefix":"b"}}}`):            "prefaced by a vendor",
		doc(`{` + all + `,"Condition":{"StringLike":{"aws:a":[]}}}`):              "empty",
		doc(`{` + all + `,"Condition":{"StringLike":{"aws:a":{}}}}`):              "not a string",
		doc(`{` + all + `,"Condition":{"Bool":{"aws:a":"yes"}}}`):                 "not true or false",
		doc(`{` + all + `,"Condition":{"NumericEquals":{"aws:a":"ten"}}}`):        "ten",
		doc(`{` + all + `,"Condition":{"DateEquals":{"aws:a":"today"}}}`):         "today",
		doc(`{` + all + `,"Condition":{"IpAddress":{"aws:a":"10.0.0.0/33"}}}`):    "10.0.0.0/33",
		doc(`{` + all + `,"Condition":[]}`):                                       "not an object",
		strings.Repeat(`{"Statement":`, 20) + `1` + strings.Repeat(`}`, 20):       "deeply",
	} {
		if _, err := policy.Parse(policy.Identity, text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s\ngot %v, want one of %q", text, err, part)
		}
	}
	for text, part := range map[string]string{
		doc(`{` + all +
			`,"Principal":{"AWS":"123456789012"}}`): "prohibited field Resource",
		doc(`{"Effect":"Allow","Action":"sts:AssumeRole"}`): "missing required " +
			"field Principal",
		doc(`{"Effect":"Allow","Action":"sts:AssumeRole","Principal":"me"}`):                 "invalid principal",
		doc(`{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"AWS":"arn:aws:*"}}`):  "invalid principal",
		doc(`{"Effect":"Allow","Action":"sts:AssumeRole","Principal":{"Person":"someone"}}`): "unknown kind",
	} {
		if _, err := policy.Parse(policy.Trust, text); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s\ngot %v, want one of %q", text, err, part)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(doc(
		`{"Effect":"Allow","Action":"*","Resource":"arn:aws:s3:::${aws:a, 'b'}*","Condition":{"ForAnyValue:StringLike":{"aws:a":["*?"]}}}`))
	f.Add(doc(
		`{"Effect":"Deny","NotAction":["a:b"],"NotResource":"*","Condition":{"IpAddress":{"a:b":"::/0"},"DateLessThan":{"a:c":"2020"}}}`))
	f.Fuzz(func(t *testing.T, text string) {
		d, err := policy.Parse(policy.Identity, text)
		if err != nil {
			return
		}
		r := policy.Request{Action: "a:b", Resource: "arn:aws:s3:::b/k", Caller: session,
			Context: policy.Context{"aws:a": {"x*"}, "a:b": {"::1"}, "a:c": {"1"}}}
		denying := policy.Policies{Identity: []*policy.Document{d, parse(t, policy.Identity,
			doc(`{"Effect":"Deny","Action":"*","Resource":"*"}`))}}
		if got := policy.Evaluate(denying, r); got.Allowed {
			t.Fatalf("an explicit deny did not win over %s", text)
		}
	})
}

package wire_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

type service struct {
	name       string
	operations map[string]wire.Handler
}

func (s service) Name() string                        { return s.name }
func (s service) Operations() map[string]wire.Handler { return s.operations }

// serve starts a server with one operation and returns a client configuration for it.
func serve(t *testing.T, name, action string, h wire.Handler) aws.Config {
	t.Helper()
	server := httptest.NewServer(wire.Handle(service{name, map[string]wire.Handler{action: h}}, "123456789012",
		"us-west-2", &sync.Mutex{}))
	t.Cleanup(server.Close)
	return aws.Config{
		Region: "us-west-2", BaseEndpoint: aws.String(server.URL), RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider("AKIAEXAMPLE", "secret", ""),
	}
}

func TestEC2Protocol(t *testing.T) {
	type filter struct {
		Name   string
		Values []string `query:"Value"`
	}
	type subnet struct {
		ID      string `xml:"subnetId"`
		Default bool   `xml:"defaultForAz"`
		Free    int    `xml:"availableIpAddressCount"`
	}
	config := serve(t, "ec2", "DescribeSubnets", func(c *wire.Call) (any, error) {
		var in struct {
			Filters    []filter `query:"Filter"`
			IDs        []string `query:"SubnetId"`
			MaxResults *int32
		}
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		want := []filter{{"vpc-id", []string{"vpc-1", "vpc-2"}}, {"tag:Name", []string{"a b&c"}}}
		if diff := cmp.Diff(want, in.Filters); diff != "" {
			return nil, wire.Errorf(400, "Different", "%s", diff)
		}
		if *in.MaxResults != 7 {
			return nil, wire.Errorf(400, "Different", "MaxResults %d", *in.MaxResults)
		}
		return struct {
			Subnets []subnet `xml:"subnetSet>item"`
			Next    string   `xml:"nextToken,omitempty"`
		}{Subnets: []subnet{{"subnet-<1>", true, 250}}, Next: "more"}, nil
	})
	client := ec2.NewFromConfig(config)
	out, err := client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{MaxResults: aws.Int32(7),
		Filters: []ec2types.Filter{
			{Name: aws.String("vpc-id"), Values: []string{"vpc-1", "vpc-2"}},
			{Name: aws.String("tag:Name"), Values: []string{"a b&c"}},
		}})
	if err != nil {
		t.Fatal(err)
	}
	if got := out.Subnets; len(got) != 1 || *got[0].SubnetId != "subnet-<1>" || !*got[0].DefaultForAz ||
		*got[0].AvailableIpAddressCount != 250 || *out.NextToken != "more" {
		t.Fatalf("got %+v", got)
	}
	_, err = client.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{DryRun: aws.Bool(true)})
	wantError(t, err, "UnknownParameter", "The parameter DryRun is not recognized", smithy.FaultUnknown)
	_, err = client.DescribeVpcs(t.Context(), nil)
	wantError(t, err, "InvalidAction", "The action DescribeVpcs is not valid for this web service", smithy.FaultUnknown)
}

func TestQueryProtocol(t *testing.T) {
	config := serve(t, "elasticloadbalancing", "RegisterTargets", func(c *wire.Call) (any, error) {
		var in struct {
			TargetGroupArn string
			Targets        []struct {
				ID   string `query:"Id"`
				Port *int32
			}
		}
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		if in.TargetGroupArn != "arn:tg" || len(in.Targets) != 2 || in.Targets[1].ID != "i-2" ||
			*in.Targets[1].Port != 80 || in.Targets[0].Port != nil {
			return nil, wire.Errorf(400, "Different", "%+v", in)
		}
		return nil, nil
	})
	client := elb.NewFromConfig(config)
	targets := []elbtypes.TargetDescription{{Id: aws.String("i-1")}, {Id: aws.String("i-2"), Port: aws.Int32(80)}}
	if _, err := client.RegisterTargets(t.Context(), &elb.RegisterTargetsInput{TargetGroupArn: aws.String("arn:tg"),
		Targets: targets}); err != nil {
		t.Fatal(err)
	}

	config = serve(t, "autoscaling", "DescribeAutoScalingGroups", func(c *wire.Call) (any, error) {
		var in struct{ AutoScalingGroupNames []string }
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		if in.AutoScalingGroupNames != nil && len(in.AutoScalingGroupNames) == 0 {
			return nil, errors.New("the disk is full")
		}
		type group struct {
			Name    string    `xml:"AutoScalingGroupName"`
			Created wire.Time `xml:"CreatedTime"`
		}
		return struct {
			Groups []group `xml:"AutoScalingGroups>member"`
		}{[]group{{in.AutoScalingGroupNames[0], wire.Time{Time: time.UnixMilli(1700000000123)}}}}, nil
	})
	groups := autoscaling.NewFromConfig(config)
	out, err := groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{
		AutoScalingGroupNames: []string{"one"}})
	if err != nil {
		t.Fatal(err)
	}
	if g := out.AutoScalingGroups; len(g) != 1 || *g[0].AutoScalingGroupName != "one" ||
		g[0].CreatedTime.UnixMilli() != 1700000000123 {
		t.Fatalf("got %+v", g)
	}
	_, err = groups.DescribeAutoScalingGroups(t.Context(), &autoscaling.DescribeAutoScalingGroupsInput{
		AutoScalingGroupNames: []string{}})
	wantError(t, err, "InternalFailure", "fakeaws: the disk is full", smithy.FaultUnknown)
}

func TestJSONProtocol(t *testing.T) {
	config := serve(t, "ssm", "GetParameter", func(c *wire.Call) (any, error) {
		var in struct{ Name string }
		if err := c.Decode(&in); err != nil {
			return nil, err
		}
		if in.Name != "/a" {
			return nil, wire.Errorf(400, "ParameterNotFound", "no %s", in.Name)
		}
		type parameter struct {
			Name             string
			LastModifiedDate wire.Time
		}
		return struct{ Parameter parameter }{parameter{"/a", wire.Time{Time: time.UnixMilli(1700000000123)}}}, nil
	})
	client := ssm.NewFromConfig(config)
	out, err := client.GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("/a")})
	if err != nil {
		t.Fatal(err)
	}
	if *out.Parameter.Name != "/a" || out.Parameter.LastModifiedDate.UnixMilli() != 1700000000123 {
		t.Fatalf("got %+v", out.Parameter)
	}
	_, err = client.GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("/b")})
	wantError(t, err, "ParameterNotFound", "no /b", smithy.FaultClient)
	_, err = client.GetParameter(t.Context(), &ssm.GetParameterInput{Name: aws.String("/a"),
		WithDecryption: aws.Bool(true)})
	wantError(t, err, "SerializationException", `json: unknown field "WithDecryption"`, smithy.FaultUnknown)
	_, err = client.DeleteParameter(t.Context(), &ssm.DeleteParameterInput{Name: aws.String("/b")})
	wantError(t, err, "UnknownOperationException", "ssm has no operation DeleteParameter here", smithy.FaultUnknown)
}

func wantError(t *testing.T, err error, code, message string, fault smithy.ErrorFault) {
	t.Helper()
	var api smithy.APIError
	if !errors.As(err, &api) || api.ErrorCode() != code || api.ErrorMessage() != message || api.ErrorFault() != fault {
		t.Fatalf("got %v, want %s: %s (%s)", err, code, message, fault)
	}
}

func TestRefused(t *testing.T) {
	handler := wire.Handle(service{"ec2", nil}, "123456789012", "us-west-2", &sync.Mutex{})
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"no action":    {"Version=2016-11-15", 400, "<Code>MissingAction</Code>"},
		"other time":   {"Action=DescribeVpcs&Version=2012-01-01", 400, "<Code>InvalidAction</Code>"},
		"not a query":  {"Action=%zz", 400, "<Code>MalformedQueryString</Code>"},
		"far too long": {"Action=" + strings.Repeat("a", 2<<20), 413, "<Code>RequestEntityTooLarge</Code>"},
	} {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body)))
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
		})
	}
}

type everything struct {
	Text   string
	Number *int32
	Yes    bool
	Share  float64
	Since  time.Time
	Data   []byte
	Inner  struct{ List []string }
	Pairs  map[string]string
	shared
}

type shared struct {
	Token string `query:"ClientToken"`
}

func TestDecode(t *testing.T) {
	number := int32(-3)
	want := everything{
		Text: "a=b", Number: &number, Yes: true, Share: 0.5, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Data:  []byte("data"),
		Pairs: map[string]string{"k": "v", "l": ""}, shared: shared{Token: "t"},
	}
	want.Inner.List = []string{"one", "two", "ten"}
	query := "Text=a%3Db&Number=-3&Yes=true&Share=0.5&Since=2026-01-02T03:04:05Z&Data=ZGF0YQ==&ClientToken=t" +
		"&Inner.List.10=ten&Inner.List.2=two&Inner.List.1=one" +
		"&Pairs.entry.1.key=k&Pairs.entry.1.value=v&Pairs.entry.2.key=l&Pairs.entry.2.value="
	var got everything
	if err := wire.Decode(parse(t, query), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(everything{})); diff != "" {
		t.Fatal(diff)
	}
	for query, code := range map[string]string{
		"Test=a":                       "UnknownParameter",
		"Text.1=a":                     "InvalidParameterValue",
		"Text=a&Text=b":                "InvalidParameterCombination",
		"Number=4294967296":            "InvalidParameterValue",
		"Number=":                      "InvalidParameterValue",
		"Yes=1":                        "InvalidParameterValue",
		"Since=yesterday":              "InvalidParameterValue",
		"Data=%25":                     "InvalidParameterValue",
		"Inner=a":                      "InvalidParameterValue",
		"Inner.List=a":                 "InvalidParameterValue",
		"Inner.List.0=a":               "UnknownParameter",
		"Inner.List.01=a":              "UnknownParameter",
		"Inner.List.member.x=a":        "UnknownParameter",
		"Inner.List.1.Name=a":          "InvalidParameterValue",
		"Inner..List=a":                "MalformedQueryString",
		"shared.ClientToken=a":         "UnknownParameter",
		strings.Repeat("a.", 30) + "b": "MalformedQueryString",
	} {
		var api *wire.Error
		if err := wire.Decode(parse(t, query), &everything{}); !errors.As(err, &api) || api.Code != code {
			t.Errorf("%s: got %v, want %s", query, err, code)
		}
	}
}

func parse(t *testing.T, query string) url.Values {
	t.Helper()
	form, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return form
}

func FuzzDecode(f *testing.F) {
	f.Add("Text=a&Inner.List.1=b&Pairs.entry.1.key=c")
	f.Add("Inner.List.member.1=b&Inner.List.2=c&Number=-1&Data=ZGF0YQ==")
	f.Fuzz(func(t *testing.T, query string) {
		form, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		var into everything
		if err := wire.Decode(form, &into); err != nil {
			var api *wire.Error
			if !errors.As(err, &api) {
				t.Fatalf("not an answer of AWS: %v", err)
			}
			return
		}
		if got := form.Get("Text"); got != into.Text {
			t.Fatalf("Text %q, was %q", into.Text, got)
		}
	})
}

func TestPage(t *testing.T) {
	items := []int{1, 2, 3, 4, 5}
	var all []int
	token, pages := "", 0
	for {
		page, next, err := wire.Page(items, 2, token)
		if err != nil {
			t.Fatal(err)
		}
		all, pages, token = append(all, page...), pages+1, next
		if next == "" {
			break
		}
	}
	if diff := cmp.Diff(items, all); diff != "" || pages != 3 {
		t.Fatalf("%d pages: %s", pages, diff)
	}
	_, next, err := wire.Page(items, 4, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := wire.Page(items[:2], 4, next); err == nil {
		t.Error("a token beyond the end was taken")
	}
	for _, token := range []string{"x", "cGFnZTotMQ==", "cGFnZTo5OTk5OTk5OTk5OTk=", "cGFnZToy\n", "cGFnZTowMg==",
		"cGFnZToyMR=="} {
		if _, _, err := wire.Page(items, 2, token); err == nil {
			t.Errorf("token %q was taken", token)
		}
	}
}

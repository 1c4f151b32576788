package aws

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go/middleware"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/awscloud"
)

// canned answers every request with the same bytes.
type canned struct {
	status int
	body   []byte
}

func (c *canned) Do(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Proto: "HTTP/1.1", ProtoMajor: 1,
		ProtoMinor: 1, Header: http.Header{"Content-Type": {"text/xml"}},
		Body: io.NopCloser(bytes.NewReader(c.body)), ContentLength: int64(len(c.body)), Request: r}, nil
}

// FuzzAnswer checks that any answer of EC2, or of another server at its address, yields a list of VMs or an error. The
// error must be one line, and its class must be one that the answer justifies.
func FuzzAnswer(f *testing.F) {
	f.Add(200,
		[]byte(`<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>i-0123456789abcdef0</instanceId><instanceState><code>16</code><name>running</name>`+
			`</instanceState><launchTime>2030-01-02T03:04:05.000Z</launchTime><privateIpAddress>10.0.0.1</privateIpAddress><tagSet><item><key>nstance:managed</key><value>true</value></item></tagSet>`+
			`<networkInterfaceSet><item><attachment><deviceIndex>0</deviceIndex></attachment><ipv6AddressesSet><item><ipv6Address>fd00::1</ipv6Address></item></ipv6AddressesSet></item>`+
			`</networkInterfaceSet></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`))
	f.Add(200,
		[]byte(`<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceState><name>asleep</name></instanceState><stateReason><code>Server.SpotInstanceTermination</code>`+
			`<message>a&#10;b</message></stateReason></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`))
	f.Add(400,
		[]byte(`<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no such&#10;instance</Message></Error></Errors><RequestID>r-1</RequestID></Response>`))
	f.Add(403,
		[]byte(`<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>You may not. Encoded authorization failure message: AbCd</Message></Error></Errors></Response>`))
	f.Add(503, []byte(`<html>try later</html>`))
	f.Add(503, []byte(`&`))
	f.Add(200, []byte(``))
	f.Add(200, []byte(`<DescribeInstancesResponse><nextToken>again</nextToken></DescribeInstancesResponse>`))
	answer := &canned{}
	cfg := sdk.Config{Region: "r", HTTPClient: answer, Credentials: credentials.NewStaticCredentialsProvider("a", "s",
		""), Retryer: func() sdk.Retryer {
		return sdk.NopRetryer{}
	},
		APIOptions: []func(*middleware.Stack) error{watch(func(string) {})}}
	p, err := New(Config{Zone: "zone-a", EC2: ec2.NewFromConfig(cfg)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if status < 200 || status > 599 {
			return
		}
		*answer = canned{status, body}
		ctx := t.Context()
		instance, err := p.instance(ctx, "get", "i-0123456789abcdef0")
		if err != nil {
			class := infra.ClassOf(err)
			if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 4<<10 {
				t.Errorf("%d %q: an error of %d bytes: %.200q", status, body, len(err.Error()), err)
			}
			if status >= 300 && awscloud.CodeOf(err) == "" && class != infra.Indeterminate {
				t.Errorf("%d %q: %v has class %q", status, body, err, class)
			}
			return
		}
		vm := describe(instance)
		if vm.ProviderID != "i-0123456789abcdef0" || !slices.Contains([]infra.State{infra.Unknown, infra.Pending,
			infra.Running, infra.Stopping, infra.Stopped, infra.Deleting, infra.Deleted}, vm.State) {
			t.Errorf("%q: %+v", body, vm)
		}
	})
}

type cannedIMDS []byte

func (c cannedIMDS) GetMetadata(context.Context, *imds.GetMetadataInput,
	...func(*imds.Options)) (*imds.GetMetadataOutput, error) {
	return &imds.GetMetadataOutput{Content: io.NopCloser(bytes.NewReader(c))}, nil
}

// FuzzMachineID checks that, for any answer of the metadata service, MachineID returns either exactly an instance ID or
// an error.
func FuzzMachineID(f *testing.F) {
	for _, text := range []string{"i-0123456789abcdef0", "i-0123456789abcdef0\n", "", "i-", "I-0123456789ABCDEF0",
		"<html>", "i-" + strings.Repeat("0", 200)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		id, err := MachineID(t.Context(), cannedIMDS(text))
		if err == nil && (id != string(text) || strings.Trim(id, "i-0123456789abcdef") != "" || len(id) > 34) {
			t.Errorf("%q is taken as %q", text, id)
		}
		if err != nil && (id != "" || len(err.Error()) > 1<<10) {
			t.Errorf("%q: %q, %v", text, id, err)
		}
	})
}

// FuzzUserdata checks that userdata arrives on the machine unchanged, or that the request is refused.
func FuzzUserdata(f *testing.F) {
	for _, text := range []string{"", "#!/bin/sh\n", "IyEvYmluL3NoCg==", "IyEvYmluL3NoCg", "a\nb=", "\x1f\x8b\x08",
		strings.Repeat("a", maxUserdata), strings.Repeat("a", maxUserdata+4)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		sent, err := encodeUserdata(text)
		if err != nil {
			if len(text) <= maxUserdata || !strings.Contains(err.Error(), "userdata: ") {
				t.Errorf("%d bytes: %v", len(text), err)
			}
			return
		}
		if len(text) == 0 {
			if sent != nil {
				t.Errorf("nothing became %q", *sent)
			}
			return
		}
		raw, err := base64.StdEncoding.DecodeString(*sent)
		if err != nil || len(raw) > maxUserdata {
			t.Fatalf("%q: sent %d bytes, %v", text, len(raw), err)
		}
		if decoded, err := base64.StdEncoding.Strict().DecodeString(string(text)); !bytes.Equal(raw, text) &&
			(err != nil || !bytes.Equal(raw, decoded)) {
			t.Errorf("%q arrives as %q", text, raw)
		}
	})
}

// TestNestingIsBounded checks that a proof cannot make its parser call itself without a limit.
func TestNestingIsBounded(t *testing.T) {
	for depth, good := range map[int]bool{10: true, maxNesting: true, maxNesting + 1: false, 2000: false} {
		ber := slices.Concat(bytes.Repeat([]byte{0x30, 0x80}, depth), []byte{5, 0}, bytes.Repeat([]byte{0, 0}, depth))
		if n, err := berSize(ber, 0); (err == nil) != good || good && n != len(ber) {
			t.Errorf("depth %d: %d of %d bytes, %v", depth, n, len(ber), err)
		}
	}
}

// TestTypeWithoutFigures checks that an instance type without its memory or processors counts as unknown.
func TestTypeWithoutFigures(t *testing.T) {
	answer := &canned{}
	p, err := New(Config{Zone: "zone-a", EC2: ec2.NewFromConfig(sdk.Config{Region: "r", HTTPClient: answer,
		Credentials: credentials.NewStaticCredentialsProvider("a", "s", ""),
		Retryer:     func() sdk.Retryer { return sdk.NopRetryer{} }})})
	if err != nil {
		t.Fatal(err)
	}
	const cpu, memory = "<vCpuInfo><defaultVCpus>2</defaultVCpus></vCpuInfo>",
		"<memoryInfo><sizeInMiB>2048</sizeInMiB></memoryInfo>"
	for figures, known := range map[string]bool{"": false, cpu: false, memory: false, cpu + memory: true} {
		*answer = canned{200, []byte("<DescribeInstanceTypesResponse><instanceTypeSet><item><instanceType>t3.nano" +
			"</instanceType>" + strings.ReplaceAll(cpu+memory, "2", "1") + "</item><item><instanceType>t3.small" +
			"</instanceType>" + figures + "</item></instanceTypeSet></DescribeInstanceTypesResponse>")}
		size, err := p.DescribeType(t.Context(), "t3.small")
		if known != (err == nil) || known && (size.CPUs != 2 || size.MemoryMiB != 2048) ||
			!known && infra.ClassOf(err) != infra.NotFound {
			t.Errorf("%q: %+v, %v", figures, size, err)
		}
	}
}

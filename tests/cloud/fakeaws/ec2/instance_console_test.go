package ec2

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

func TestGetConsoleOutput(t *testing.T) {
	m := &machines{}
	w := newTestRegion(t, m)
	console := func(id string, latest bool) (string, error) {
		t.Helper()
		out, err := w.client.GetConsoleOutput(t.Context(), &sdk.GetConsoleOutputInput{InstanceId: &id, Latest: &latest})
		if err != nil {
			return "", err
		}
		text, err := base64.StdEncoding.DecodeString(aws.ToString(out.Output))
		if err != nil || aws.ToString(out.InstanceId) != id || out.Timestamp == nil {
			t.Errorf("%+v, %v", out, err)
		}
		return string(text), nil
	}
	id := *w.run(nil).InstanceId
	if text, err := console(id, true); text != "" || err != nil {
		t.Errorf("before any output: %q, %v", text, err)
	}
	m.started[0].console = []byte(strings.Repeat("a", 70<<10) + "the last line")
	text, err := console(id, true)
	if err != nil || len(text) != 64<<10 || !strings.HasSuffix(text, "the last line") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	w.terminate(id)
	w.eventually(id, types.InstanceStateNameTerminated)
	if text, err := console(id, false); err != nil || !strings.HasSuffix(text, "the last line") {
		t.Errorf("after the termination: %d bytes, %v", len(text), err)
	}
	if _, err := console("i-0123456789abcdef0", true); code(t, err) != "InvalidInstanceID.NotFound" {
		t.Errorf("an unknown instance: %v", err)
	}
}

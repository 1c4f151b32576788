package aws_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/client/machinegroup/aws"
)

const (
	started = `<member><InstanceRefreshId>r</InstanceRefreshId><StartTime>2026-01-01T12:00:00Z</StartTime></member>`
	pending = `<member><InstanceRefreshId>r</InstanceRefreshId><Status>Pending</Status></member>`
)

// activity returns a scaling activity as AWS describes it, at a minute of an hour.
func activity(hour, minute int, status, description, message string) string {
	return fmt.Sprintf("<member><ActivityId>a</ActivityId><Description>%s</Description><StatusCode>%s</StatusCode>"+
		"<StatusMessage>%s</StatusMessage><StartTime>2026-01-01T%d:%02d:00Z</StartTime></member>", description, status,
		message, hour, minute)
}

func TestLook(t *testing.T) {
	launch := func(minute int, status, message string) string {
		return activity(12, minute, status, "Launching a new EC2 instance", message)
	}
	const room = "We currently do not have sufficient t3.nano capacity."
	for name, test := range map[string]struct {
		refreshes, activities string
		want                  machinegroup.State
	}{
		"nothing yet": {"", "", machinegroup.State{}},
		"refused": {started, launch(1, "Failed", room) + launch(0, "Failed", "Invalid AMI"),
			machinegroup.State{Refusal: room, Refusals: 2}},
		"a new group": {"", launch(0, "Failed", room), machinegroup.State{Refusal: room, Refusals: 1}},
		"without a message": {started,
			activity(12, 0, "Failed", "Launching a new EC2 instance.  Status Reason: full", ""),
			machinegroup.State{Refusal: "Launching a new EC2 instance.  Status Reason: full", Refusals: 1}},
		"refused before the refresh": {started, activity(11, 59, "Failed", "Launching a new EC2 instance", room),
			machinegroup.State{}},
		"refused before a refresh that is pending": {pending, launch(1, "Failed", room), machinegroup.State{}},
		"goes on":           {started, launch(2, "InProgress", "") + launch(1, "Failed", room), machinegroup.State{}},
		"succeeded at last": {started, launch(2, "Successful", "") + launch(1, "Failed", room), machinegroup.State{}},
		"the machine is not ready": {started, launch(2, "Cancelled", "Lifecycle Action was abandoned"),
			machinegroup.State{}},
		"refused after a success, and another termination failed": {started,
			activity(12, 4, "Failed", "Terminating EC2 instance: i-1", "no") + launch(3, "Failed", room) +
				launch(2, "Successful", "") + launch(1, "Failed", room),
			machinegroup.State{Refusal: room, Refusals: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			group := open(t, func(action string) string {
				if action == "DescribeInstanceRefreshes" {
					return "<InstanceRefreshes>" + test.refreshes + "</InstanceRefreshes>"
				}
				return "<Activities>" + test.activities + "</Activities>"
			})
			got, err := group.Look(t.Context())
			if err != nil || got != test.want {
				t.Errorf("the state is %+v (%v), want %+v", got, err, test.want)
			}
		})
	}
}

func TestLookFails(t *testing.T) {
	for _, action := range []string{"DescribeInstanceRefreshes", "DescribeScalingActivities"} {
		group := open(t, func(asked string) string {
			if asked == action {
				return ""
			}
			return "<InstanceRefreshes></InstanceRefreshes>"
		})
		if _, err := group.Look(t.Context()); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("%s is denied, but the error is %v", action, err)
		}
	}
}

// open returns a group in a fake of Auto Scaling. The fake denies an action without an answer.
func open(t *testing.T, answer func(action string) string) machinegroup.Group {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		action := r.PostFormValue("Action")
		if got := r.PostFormValue("AutoScalingGroupName"); got != "solo-server" {
			t.Errorf("%s asks for group %q", action, got)
		}
		if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/autoscaling/") {
			t.Errorf("%s is signed for another region: %s", action, r.Header.Get("Authorization"))
		}
		text := answer(action)
		if text == "" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
			return
		}
		_, _ = fmt.Fprintf(w, "<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult></%[1]sResponse>", action, text)
	}))
	t.Cleanup(server.Close)
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_AUTO_SCALING": server.URL, "AWS_ACCESS_KEY_ID": "x",
		"AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": "", "AWS_PROFILE": "", "AWS_CONFIG_FILE": "/dev/null",
		"AWS_SHARED_CREDENTIALS_FILE": "/dev/null"} {
		t.Setenv(name, value)
	}
	group, err := aws.Cloud().Open(t.Context(), machinegroup.Place{Kind: "aws", Name: "solo-server",
		Region: "eu-west-1"}, cloud.Access{Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	if got := group.String(); got != "Auto Scaling group solo-server in eu-west-1" {
		t.Errorf("the group is described as %q", got)
	}
	return group
}

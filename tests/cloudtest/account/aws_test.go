package account_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/ec2"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

// newAWS returns a fake AWS, and its account.
func newAWS(t *testing.T) (*fakeaws.Cloud, *account.AWS) {
	t.Helper()
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Authorization"), "/s3/") { // this fake has no S3
			w.Header().Set("Content-Type", "application/xml")
			_, _ = w.Write([]byte("<ListAllMyBucketsResult><Buckets></Buckets></ListAllMyBucketsResult>"))
			return
		}
		cloud.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	access, secret := cloud.Credentials()
	return cloud, account.NewAWS(aws.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
}

// TestImages checks that what Packer makes for a run is found and deleted, and that nothing else is.
func TestImages(t *testing.T) {
	cloud, a := newAWS(t)
	tags := func(run string) map[string]string {
		return map[string]string{account.Tag: run, "nstance:image": "server"}
	}
	service := cloud.EC2()
	service.AddImage(ec2.AMI{ID: "ami-00000000000000001", Tags: tags("ct-mine"), Created: time.Now().Add(-time.Hour)})
	service.AddImage(ec2.AMI{ID: "ami-00000000000000002", Tags: tags("ct-mine")})
	other := service.AddImage(ec2.AMI{ID: "ami-00000000000000003", Tags: tags("ct-mine2")})
	service.AddVolume("us-west-2a", tags("ct-mine"))
	service.AddKeyPair("packer_1", tags("ct-mine"))
	kept := service.AddKeyPair("packer_2", nil)
	if id, err := a.Image(t.Context(), "ct-mine", "server"); err != nil || id != "ami-00000000000000002" {
		t.Errorf("the newest image is %s, %v", id, err)
	}
	if _, err := a.Image(t.Context(), "ct-mine", "agent"); err == nil {
		t.Error("there is an image of an agent")
	}
	before := inventory(t, a, "")
	mine := inventory(t, a, "ct-mine")
	if len(mine) != 6 { // two images with snapshots, a volume, a key pair
		t.Errorf("the run has %v", mine)
	}
	if err := account.Sweep(t.Context(), a, "ct-mine", func([]account.Resource) {}); err != nil {
		t.Error(err)
	}
	want := slices.DeleteFunc(before, func(one string) bool { return slices.Contains(mine, one) })
	after := inventory(t, a, "")
	if !slices.Equal(after, want) || !slices.Contains(after, "image "+other) ||
		!slices.Contains(after, "key pair "+kept) {
		t.Errorf("after the clean-up there is %v, want %v", after, want)
	}
}

// TestRefused checks that Sweep ends soon if the cloud refuses all calls, and says what is left and why.
func TestRefused(t *testing.T) {
	cloud, a := newAWS(t)
	id := cloud.EC2().AddKeyPair("packer_1", map[string]string{account.Tag: "ct-mine"})
	cloud.Faults().Fail(fault.Match{Service: "ec2", Action: "DeleteKeyPair"}, fault.Forever, http.StatusForbidden,
		"UnauthorizedOperation", "You are not authorized to perform this operation.")
	err := account.Sweep(t.Context(), a, "ct-mine", func([]account.Resource) {})
	left, ok := errors.AsType[*account.LeftError](err)
	if !ok || len(left.Left) != 1 || !strings.Contains(err.Error(), "key pair "+id+": ") ||
		!strings.Contains(err.Error(), "You are not authorized") {
		t.Errorf("the error is %v", err)
	}
}

// TestZone checks the choice of a zone, and the errors that say why there is none.
func TestZone(t *testing.T) {
	cloud, a := newAWS(t)
	cloud.EC2().WithoutType("t3.nano", "us-west-2a")
	types := []string{"t3.nano", "t3.small"}
	if zone, err := a.Zone(t.Context(), "us-west-2", "", types); err != nil || zone != "us-west-2b" {
		t.Errorf("the zone is %q, %v", zone, err)
	}
	for want, text := range map[string]string{
		"us-west-2a": "the zone us-west-2a does not offer the machine types t3.nano: choose another ZONE",
		"eu-west-1a": "the region us-west-2 has no zone eu-west-1a: it has us-west-2a",
	} {
		if _, err := a.Zone(t.Context(), "us-west-2", want, types); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("zone %s: %v", want, err)
		}
	}
	if _, err := a.Zone(t.Context(), "us-west-2", "", []string{"t9.nano"}); err == nil ||
		!strings.Contains(err.Error(), "no zone of the region us-west-2 offers all of the machine types t9.nano") {
		t.Errorf("a machine type that does not exist: %v", err)
	}
}

func inventory(t *testing.T, a *account.AWS, cluster string) (found []string) {
	t.Helper()
	all, err := a.Inventory(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		found = append(found, one.String())
	}
	return found
}

// TestThrottled checks that an inventory outlasts a time in which AWS refuses requests because there are too many.
func TestThrottled(t *testing.T) {
	t.Parallel()
	cloud, a := newAWS(t)
	cloud.Faults().Fail(fault.Match{Service: "ec2", Action: "DescribeInstances"}, 4, http.StatusServiceUnavailable,
		"RequestLimitExceeded", "Request limit exceeded.")
	if _, err := a.Inventory(t.Context(), "ct-mine"); err != nil {
		t.Error(err)
	}
}

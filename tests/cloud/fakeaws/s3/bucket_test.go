package s3_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// clientTo returns a client that connects to one server, whatever the host in the URL is.
func clientTo(server string) *http.Client {
	u, err := url.Parse(server)
	if err != nil {
		panic(err)
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, u.Host)
		}}}
}

func TestBuckets(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	create := func(name string, where types.BucketLocationConstraint) error {
		in := &sdk.CreateBucketInput{Bucket: &name}
		if where != "" {
			in.CreateBucketConfiguration = &types.CreateBucketConfiguration{LocationConstraint: where}
		}
		_, err := w.CreateBucket(ctx, in)
		return err
	}
	w.bucket("b-1")
	wantCode(t, "once more", create("b-1", region), "BucketAlreadyOwnedByYou")
	wantCode(t, "name", create("B_1", region), "InvalidBucketName")
	wantCode(t, "name like an address", create("10.0.0.1", region), "InvalidBucketName")
	wantCode(t, "another region", create("b-2", "eu-central-1"), "IllegalLocationConstraintException")
	wantCode(t, "no region", create("b-2", ""), "IllegalLocationConstraintException")
	head := must(w.HeadBucket(ctx, &sdk.HeadBucketInput{Bucket: ptr("b-1")}))(t)
	if aws.ToString(head.BucketRegion) != region {
		t.Errorf("head: %+v", head)
	}
	_, err := w.HeadBucket(ctx, &sdk.HeadBucketInput{Bucket: ptr("b-2")})
	var status *smithyhttp.ResponseError
	if !errors.As(err, &status) || status.HTTPStatusCode() != http.StatusNotFound {
		t.Errorf("head of nothing: %v", err)
	}
	all := must(w.ListBuckets(ctx, &sdk.ListBucketsInput{}))(t)
	if len(all.Buckets) != 1 || *all.Buckets[0].Name != "b-1" || *all.Buckets[0].BucketRegion != region {
		t.Errorf("all: %+v", all)
	}
	_, err = w.GetBucketVersioning(ctx, &sdk.GetBucketVersioningInput{Bucket: ptr("b-1")}, func(o *sdk.Options) {
		o.Region = "eu-central-1"
	})
	wantCode(t, "signed for another region", err, "AuthorizationHeaderMalformed")
	w.may(allow("*", "s3:CreateBucket"))
	_, err = w.as("role").DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")})
	wantCode(t, "delete without permission", err, "AccessDenied")
	w.put("b-1", "k", "1")
	_, err = w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")})
	wantCode(t, "delete what is not empty", err, "BucketNotEmpty")
	must(w.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: ptr("b-1"), Key: ptr("k")}))(t)
	must(w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")}))(t)
	_, err = w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")})
	wantCode(t, "delete twice", err, "NoSuchBucket")
}

// TestConfigurations checks the defaults of a new bucket, each setting, and the answers after a setting is deleted.
func TestConfigurations(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	b := ptr("b-1")

	block := must(w.GetPublicAccessBlock(ctx, &sdk.GetPublicAccessBlockInput{Bucket: b}))(
		t).PublicAccessBlockConfiguration
	if !*block.BlockPublicAcls || !*block.IgnorePublicAcls || !*block.BlockPublicPolicy ||
		!*block.RestrictPublicBuckets {
		t.Errorf("a new bucket is public: %+v", block)
	}
	owner := must(w.GetBucketOwnershipControls(ctx, &sdk.GetBucketOwnershipControlsInput{Bucket: b}))(
		t).OwnershipControls
	if owner.Rules[0].ObjectOwnership != types.ObjectOwnershipBucketOwnerEnforced {
		t.Errorf("ownership: %+v", owner)
	}
	encryption := func() (types.ServerSideEncryption, bool) {
		t.Helper()
		r := must(w.GetBucketEncryption(ctx, &sdk.GetBucketEncryptionInput{Bucket: b}))(
			t).ServerSideEncryptionConfiguration.Rules[0]
		return r.ApplyServerSideEncryptionByDefault.SSEAlgorithm, aws.ToBool(r.BucketKeyEnabled)
	}
	if a, k := encryption(); a != types.ServerSideEncryptionAes256 || k {
		t.Errorf("encryption: %s, %t", a, k)
	}
	if v := must(w.GetBucketVersioning(ctx, &sdk.GetBucketVersioningInput{Bucket: b}))(t); v.Status != "" {
		t.Errorf("versioning: %+v", v)
	}
	if v := must(w.GetBucketAccelerateConfiguration(ctx, &sdk.GetBucketAccelerateConfigurationInput{Bucket: b}))(
		t); v.Status != "" {
		t.Errorf("acceleration: %+v", v)
	}
	if v := must(w.GetBucketRequestPayment(ctx, &sdk.GetBucketRequestPaymentInput{Bucket: b}))(
		t); v.Payer != types.PayerBucketOwner {
		t.Errorf("payer: %+v", v)
	}
	if v := must(w.GetBucketLogging(ctx, &sdk.GetBucketLoggingInput{Bucket: b}))(t); v.LoggingEnabled != nil {
		t.Errorf("logging: %+v", v)
	}
	if v := must(w.GetBucketAcl(ctx, &sdk.GetBucketAclInput{Bucket: b}))(t); len(v.Grants) != 1 ||
		*v.Grants[0].Grantee.ID != *v.Owner.ID || v.Grants[0].Grantee.Type != types.TypeCanonicalUser {
		t.Errorf("ACL: %+v", v)
	}
	absent := func() map[string]error {
		out := map[string]error{}
		_, out["NoSuchBucketPolicy"] = w.GetBucketPolicy(ctx, &sdk.GetBucketPolicyInput{Bucket: b})
		_, out["NoSuchTagSet"] = w.GetBucketTagging(ctx, &sdk.GetBucketTaggingInput{Bucket: b})
		_, out["NoSuchLifecycleConfiguration"] = w.GetBucketLifecycleConfiguration(ctx,
			&sdk.GetBucketLifecycleConfigurationInput{Bucket: b})
		_, out["NoSuchCORSConfiguration"] = w.GetBucketCors(ctx, &sdk.GetBucketCorsInput{Bucket: b})
		_, out["NoSuchWebsiteConfiguration"] = w.GetBucketWebsite(ctx, &sdk.GetBucketWebsiteInput{Bucket: b})
		_, out["ReplicationConfigurationNotFoundError"] = w.GetBucketReplication(ctx,
			&sdk.GetBucketReplicationInput{Bucket: b})
		_, out["ObjectLockConfigurationNotFoundError"] = w.GetObjectLockConfiguration(ctx,
			&sdk.GetObjectLockConfigurationInput{Bucket: b})
		return out
	}
	for code, err := range absent() {
		wantCode(t, "new bucket", err, code)
	}

	must(w.PutBucketTagging(ctx, &sdk.PutBucketTaggingInput{Bucket: b,
		Tagging: &types.Tagging{TagSet: []types.Tag{{Key: ptr("k"), Value: ptr("a <b> & \n c")}}}}))(t)
	if v := must(w.GetBucketTagging(ctx, &sdk.GetBucketTaggingInput{Bucket: b}))(t).TagSet; len(v) != 1 ||
		*v[0].Value != "a <b> & \n c" {
		t.Errorf("tags: %+v", v)
	}
	must(w.PutBucketEncryption(ctx, &sdk.PutBucketEncryptionInput{Bucket: b,
		ServerSideEncryptionConfiguration: &types.ServerSideEncryptionConfiguration{
			Rules: []types.ServerSideEncryptionRule{{BucketKeyEnabled: ptr(true),
				ApplyServerSideEncryptionByDefault: &types.ServerSideEncryptionByDefault{
					SSEAlgorithm: types.ServerSideEncryptionAwsKms, KMSMasterKeyID: ptr("key"),
				}}},
		}}))(t)
	if a, k := encryption(); a != types.ServerSideEncryptionAwsKms || !k {
		t.Errorf("encryption: %s, %t", a, k)
	}
	if put := w.put("b-1", "k", "1"); put.ServerSideEncryption != types.ServerSideEncryptionAwsKms ||
		aws.ToString(put.SSEKMSKeyId) != "key" || !aws.ToBool(put.BucketKeyEnabled) {
		t.Errorf("object: %+v", put)
	}
	rule := types.LifecycleRule{
		Status: types.ExpirationStatusEnabled, Filter: &types.LifecycleRuleFilter{Prefix: ptr("")},
		NoncurrentVersionExpiration:    &types.NoncurrentVersionExpiration{NoncurrentDays: ptr(int32(30))},
		AbortIncompleteMultipartUpload: &types.AbortIncompleteMultipartUpload{DaysAfterInitiation: ptr(int32(7))},
	}
	must(w.PutBucketLifecycleConfiguration(ctx, &sdk.PutBucketLifecycleConfigurationInput{Bucket: b,
		LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: []types.LifecycleRule{rule}}}))(t)
	life := must(w.GetBucketLifecycleConfiguration(ctx, &sdk.GetBucketLifecycleConfigurationInput{Bucket: b}))(t)
	if r := life.Rules[0]; aws.ToString(r.ID) == "" || r.Filter.Prefix == nil ||
		*r.NoncurrentVersionExpiration.NoncurrentDays != 30 ||
		life.TransitionDefaultMinimumObjectSize != "all_storage_classes_128K" {
		t.Errorf("lifecycle: %+v", life)
	}
	for what, err := range map[string]error{
		"a tag of AWS": second(w.PutBucketTagging(ctx, &sdk.PutBucketTaggingInput{Bucket: b,
			Tagging: &types.Tagging{TagSet: []types.Tag{{Key: ptr("aws:k"), Value: ptr("v")}}}})),
	} {
		wantCode(t, what, err, "InvalidTag")
	}
	for what, err := range map[string]error{
		"no algorithm": second(w.PutBucketEncryption(ctx, &sdk.PutBucketEncryptionInput{Bucket: b,
			ServerSideEncryptionConfiguration: &types.ServerSideEncryptionConfiguration{
				Rules: []types.ServerSideEncryptionRule{{BucketKeyEnabled: ptr(true)}},
			}})),
	} {
		wantCode(t, what, err, "MalformedXML")
	}
	_, err := w.GetBucketAnalyticsConfiguration(ctx, &sdk.GetBucketAnalyticsConfigurationInput{Bucket: b, Id: ptr("i")})
	wantCode(t, "what is not known", err, "NotImplemented")

	must(w.DeleteBucketLifecycle(ctx, &sdk.DeleteBucketLifecycleInput{Bucket: b}))(t)
	must(w.DeleteBucketEncryption(ctx, &sdk.DeleteBucketEncryptionInput{Bucket: b}))(t)
	must(w.DeletePublicAccessBlock(ctx, &sdk.DeletePublicAccessBlockInput{Bucket: b}))(t)
	must(w.DeleteBucketOwnershipControls(ctx, &sdk.DeleteBucketOwnershipControlsInput{Bucket: b}))(t)
	_, err = w.GetBucketLifecycleConfiguration(ctx, &sdk.GetBucketLifecycleConfigurationInput{Bucket: b})
	wantCode(t, "deleted", err, "NoSuchLifecycleConfiguration")
	_, err = w.GetPublicAccessBlock(ctx, &sdk.GetPublicAccessBlockInput{Bucket: b})
	wantCode(t, "deleted", err, "NoSuchPublicAccessBlockConfiguration")
	_, err = w.GetBucketOwnershipControls(ctx, &sdk.GetBucketOwnershipControlsInput{Bucket: b})
	wantCode(t, "deleted", err, "OwnershipControlsNotFoundError")
	if a, _ := encryption(); a != types.ServerSideEncryptionAes256 {
		t.Errorf("encryption: %s", a)
	}
}

func second[T any](_ T, err error) error { return err }

func TestBucketPolicies(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	put := func(statement string) error {
		_, err := w.PutBucketPolicy(ctx, &sdk.PutBucketPolicyInput{Bucket: ptr("b-1"),
			Policy: ptr(`{"Version":"2012-10-17","Statement":[` + statement + `]}`)})
		return err
	}
	for what, statement := range map[string]string{
		"another bucket":  `{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::b-10/*"}`,
		"another service": `{"Effect":"Deny","Principal":"*","Action":"ec2:*","Resource":"arn:aws:s3:::b-1/*"}`,
		"no principal":    `{"Effect":"Deny","Action":"s3:*","Resource":"arn:aws:s3:::b-1/*"}`,
		"unknown element": `{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::b-1/*","If":"x"}`,
	} {
		wantCode(t, what, put(statement), "MalformedPolicy")
	}
	const everybody = `{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b-1/*"}`
	wantCode(t, "public", put(everybody), "AccessDenied")
	const network = `{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b-1/*","Condition":{"StringEquals":{"aws:SourceVpce":"vpce-1"}}}`
	if err := put(network); err != nil {
		t.Error(err)
	}
	got := must(w.GetBucketPolicy(ctx, &sdk.GetBucketPolicyInput{Bucket: ptr("b-1")}))(t)
	if !strings.Contains(*got.Policy, network) {
		t.Errorf("policy: %s", *got.Policy)
	}
	must(w.DeletePublicAccessBlock(ctx, &sdk.DeletePublicAccessBlockInput{Bucket: ptr("b-1")}))(t)
	if err := put(everybody); err != nil {
		t.Error(err)
	}
}

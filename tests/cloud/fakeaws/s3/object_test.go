package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/google/go-cmp/cmp"
)

func (f *testFront) get(client *sdk.Client, bucket, key string) (string, *sdk.GetObjectOutput, error) {
	out, err := client.GetObject(f.t.Context(), &sdk.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return "", nil, err
	}
	defer out.Body.Close()
	body, err := io.ReadAll(out.Body)
	return string(body), out, err
}

func TestObjects(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	for _, key := range []string{"a b/c+d/ü%2F.json", "x", "p/q?r=s&t", "p/;,:@=$!*'()~"} {
		put, err := w.PutObject(ctx, &sdk.PutObjectInput{
			Bucket: ptr("b-1"), Key: &key, Body: strings.NewReader("body of " + key), ContentType: ptr("text/x"),
			Metadata: map[string]string{"m": "1"},
			Tagging:  ptr("k=v%20w"), ChecksumAlgorithm: types.ChecksumAlgorithmSha256,
			ContentEncoding: ptr("identity"),
		})
		if err != nil {
			t.Fatalf("put %q: %v", key, err)
		}
		body, out, err := w.get(w.Client, "b-1", key)
		if err != nil || body != "body of "+key || *out.ETag != *put.ETag || *out.ContentType != "text/x" ||
			out.Metadata["m"] != "1" ||
			aws.ToString(out.ContentEncoding) != "identity" {
			t.Errorf("get %q: %q, %+v, %v", key, body, out, err)
		}
		if put.ServerSideEncryption != types.ServerSideEncryptionAes256 ||
			out.ServerSideEncryption != types.ServerSideEncryptionAes256 {
			t.Errorf("%q is not marked as encrypted", key)
		}
	}
	listed := must(w.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: ptr("b-1"), Delimiter: ptr("/")}))(t)
	if len(listed.Contents) != 1 || *listed.Contents[0].Key != "x" || len(listed.CommonPrefixes) != 2 {
		t.Errorf("listed: %+v", listed)
	}
	_, err := w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("x"), Body: strings.NewReader("2"),
		IfNoneMatch: ptr("*")})
	wantCode(t, "put what exists", err, "PreconditionFailed")
	_, err = w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("x"), Body: strings.NewReader("2"),
		ContentMD5: ptr("AAAAAAAAAAAAAAAAAAAAAA==")})
	wantCode(t, "put with a wrong sum", err, "BadDigest")
	_, err = w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("x"), Body: strings.NewReader("2"),
		ACL: types.ObjectCannedACLPublicRead})
	wantCode(t, "put with an ACL", err, "AccessControlListNotSupported")
	_, err = w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("x"), Body: strings.NewReader("2"),
		SSECustomerAlgorithm: ptr("AES256"), SSECustomerKey: ptr("k"), SSECustomerKeyMD5: ptr("m")})
	wantCode(t, "put with a key of the customer", err, "NotImplemented")
	_, err = w.GetObject(ctx, &sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("x"),
		ExpectedBucketOwner: ptr("999999999999")})
	wantCode(t, "another owner", err, "AccessDenied")
	_, _, err = w.get(w.Client, "b-1", "absent")
	wantCode(t, "get what is not there", err, "NoSuchKey")
	_, _, err = w.get(w.Client, "b-2", "absent")
	wantCode(t, "get without a bucket", err, "NoSuchBucket")

	_, err = w.CopyObject(ctx, &sdk.CopyObjectInput{Bucket: ptr("b-1"), Key: ptr("copy"), CopySource: ptr("b-1/x")})
	wantCode(t, "copy", err, "NotImplemented")
	all := must(w.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: ptr("b-1")}))(t)
	var del types.Delete
	for _, o := range all.Contents {
		del.Objects = append(del.Objects, types.ObjectIdentifier{Key: o.Key})
	}
	out := must(w.DeleteObjects(ctx, &sdk.DeleteObjectsInput{Bucket: ptr("b-1"), Delete: &del}))(t)
	if len(out.Deleted) != 4 || len(out.Errors) != 0 {
		t.Errorf("deleted: %+v", out)
	}
	must(w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")}))(t)
}

func (f *testFront) head(client *sdk.Client, bucket, key, version string) (*sdk.HeadObjectOutput, error) {
	in := &sdk.HeadObjectInput{Bucket: &bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled}
	if version != "" {
		in.VersionId = &version
	}
	return client.HeadObject(f.t.Context(), in)
}

func TestHeadObject(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	must(w.PutBucketVersioning(ctx, &sdk.PutBucketVersioningInput{Bucket: ptr("b-1"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}}))(t)
	first := w.put("b-1", "k", "1")
	second := must(w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("k"),
		Body: strings.NewReader("second"), ContentType: ptr("text/x"), Metadata: map[string]string{"m": "1"},
		ChecksumAlgorithm: types.ChecksumAlgorithmSha256}))(t)
	for version, want := range map[string]*sdk.PutObjectOutput{"": second, *second.VersionId: second,
		*first.VersionId: first} {
		got, err := w.head(w.Client, "b-1", "k", version)
		if err != nil {
			t.Fatalf("head of version %q: %v", version, err)
		}
		if *got.ETag != *want.ETag || *got.VersionId != *want.VersionId ||
			got.ServerSideEncryption != types.ServerSideEncryptionAes256 || got.LastModified == nil {
			t.Errorf("head of version %q: %+v, want ETag %s and version %s", version, got, *want.ETag, *want.VersionId)
		}
	}
	newest := must(w.head(w.Client, "b-1", "k", ""))(t)
	if *newest.ContentLength != 6 || *newest.ContentType != "text/x" || newest.Metadata["m"] != "1" ||
		aws.ToString(newest.ChecksumSHA256) == "" ||
		aws.ToString(newest.ChecksumSHA256) != aws.ToString(second.ChecksumSHA256) {
		t.Errorf("head of the newest version: %+v", newest)
	}
	_, err := w.HeadObject(ctx, &sdk.HeadObjectInput{Bucket: ptr("b-1"), Key: ptr("k"), IfMatch: first.ETag})
	wantCode(t, "head with the ETag of another version", err, "PreconditionFailed")

	// Errors of HeadObject have no body. The SDK takes the error code from the HTTP status.
	_, err = w.head(w.Client, "b-1", "absent", "")
	wantCode(t, "head of an absent object", err, "NotFound")
	marker := must(w.DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: ptr("b-1"), Key: ptr("k")}))(t)
	_, err = w.head(w.Client, "b-1", "k", "")
	wantCode(t, "head of a deleted object", err, "NotFound")
	var answer *awshttp.ResponseError
	if !errors.As(err, &answer) || answer.Response.Header.Get("X-Amz-Delete-Marker") != "true" ||
		answer.Response.Header.Get("X-Amz-Version-Id") != *marker.VersionId {
		t.Errorf("head of a deleted object does not name the delete marker: %v", err)
	}
	_, err = w.head(w.Client, "b-1", "k", *marker.VersionId)
	if !errors.As(err, &answer) || answer.HTTPStatusCode() != http.StatusMethodNotAllowed {
		t.Errorf("head of a delete marker: %v, want status 405", err)
	}
	must(w.head(w.Client, "b-1", "k", *first.VersionId))(t)

	// HeadObject needs s3:GetObject. A caller that may not list the bucket does not learn that an object is absent.
	role := w.as("role")
	w.may(allow("arn:aws:s3:::b-1/open", "s3:GetObject"))
	w.put("b-1", "open", "1")
	must(w.head(role, "b-1", "open", ""))(t)
	for _, key := range []string{"k", "absent"} {
		_, err = w.head(role, "b-1", key, "")
		wantCode(t, "head of "+key+" without permission", err, "Forbidden")
	}
	w.may(allow("arn:aws:s3:::b-1/*", "s3:GetObject"))
	_, err = w.head(role, "b-1", "absent", "")
	wantCode(t, "head of an absent object without s3:ListBucket", err, "Forbidden")
	_, err = w.head(role, "b-1", "open", *second.VersionId)
	wantCode(t, "head of a version without s3:GetObjectVersion", err, "Forbidden")
}

func TestPermissions(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	w.put("b-1", "shard/a/x", "1")
	w.put("b-1", "config/a", "2")
	role := w.as("role")
	w.may(`{"Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:aws:s3:::b-1","Condition":{"StringLike":{"s3:prefix":["shard/*"]}}}`,
		allow("arn:aws:s3:::b-1/shard/*", "s3:GetObject", "s3:PutObject"),
		allow("arn:aws:s3:::b-1/config/*", "s3:GetObject"))

	must(role.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: ptr("b-1"), Prefix: ptr("shard/")}))(t)
	_, err := role.ListObjectsV2(ctx, &sdk.ListObjectsV2Input{Bucket: ptr("b-1")})
	wantCode(t, "list all", err, "AccessDenied")
	if _, _, err := w.get(role, "b-1", "config/a"); err != nil {
		t.Error(err)
	}
	_, err = role.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("config/a"),
		Body: strings.NewReader("3")})
	wantCode(t, "write with read permission only", err, "AccessDenied")
	if body, _, _ := w.get(w.Client, "b-1", "config/a"); body != "2" {
		t.Errorf("it was written all the same: %q", body)
	}
	_, err = role.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("shard/t"),
		Body: strings.NewReader("3"), Tagging: ptr("a=b")})
	wantCode(t, "tag without permission", err, "AccessDenied")
	out := must(role.DeleteObjects(ctx, &sdk.DeleteObjectsInput{Bucket: ptr("b-1"),
		Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: ptr("shard/a/x")}}}}))(t)
	if len(out.Deleted) != 0 || len(out.Errors) != 1 || *out.Errors[0].Code != "AccessDenied" {
		t.Errorf("delete without permission: %+v", out)
	}
	// A caller that may not list the bucket does not learn that an object is absent.
	_, _, err = w.get(role, "b-1", "config/absent")
	wantCode(t, "get what is absent", err, "AccessDenied")
	w.may(allow("arn:aws:s3:::b-1", "s3:ListBucket"), allow("arn:aws:s3:::b-1/config/*", "s3:GetObject"))
	_, _, err = w.get(role, "b-1", "config/absent")
	wantCode(t, "get what is absent, as one who may list", err, "NoSuchKey")

	// This bucket policy lets the role put objects below once/ only if the request has the header If-None-Match.
	must(w.PutBucketPolicy(ctx, &sdk.PutBucketPolicyInput{Bucket: ptr("b-1"),
		Policy: ptr(`{"Version":"2012-10-17","Statement":[
		{"Effect":"Allow","Principal":{"AWS":"arn:aws:iam::123456789012:role/reader"},"Action":"s3:PutObject","Resource":"arn:aws:s3:::b-1/once/*","Condition":{"Null":{"s3:if-none-match":"false"}}},
		{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::b-1","arn:aws:s3:::b-1/*"],"Condition":{"Bool":{"aws:SecureTransport":"false"}}},
		{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b-1/secret"}]}`)}))(t)
	must(role.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("once/1"), Body: strings.NewReader("3"),
		IfNoneMatch: ptr("*")}))(t)
	_, err = role.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("once/2"),
		Body: strings.NewReader("3")})
	wantCode(t, "unconditional put", err, "AccessDenied")
	_, _, err = w.get(w.Client, "b-1", "secret")
	wantCode(t, "what is denied to the account, too", err, "AccessDenied")
}

// TestDemandedEncryption puts objects into a bucket with a policy that demands a KMS key. S3 compares only the headers
// of the request with the policy, not the bucket's default encryption.
func TestDemandedEncryption(t *testing.T) {
	const key, other = "arn:aws:kms:us-west-2:123456789012:key/1", "arn:aws:kms:us-west-2:123456789012:key/2"
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	must(w.PutBucketEncryption(ctx, &sdk.PutBucketEncryptionInput{Bucket: ptr("b-1"),
		ServerSideEncryptionConfiguration: &types.ServerSideEncryptionConfiguration{
			Rules: []types.ServerSideEncryptionRule{{
				ApplyServerSideEncryptionByDefault: &types.ServerSideEncryptionByDefault{
					SSEAlgorithm: types.ServerSideEncryptionAwsKms, KMSMasterKeyID: ptr(key)}}}}}))(t)
	must(w.PutBucketPolicy(ctx, &sdk.PutBucketPolicyInput{Bucket: ptr("b-1"),
		Policy: ptr(`{"Version":"2012-10-17","Statement":[
		{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::b-1/*","Condition":{"Null":{"s3:x-amz-server-side-encryption":"true"}}},
		{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::b-1/*","Condition":{"StringNotEquals":{"s3:x-amz-server-side-encryption-aws-kms-key-id":"` +
			key + `"}}}]}`)}))(t)
	put := func(client *sdk.Client, algorithm types.ServerSideEncryption, id string) error {
		in := &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("k"), Body: strings.NewReader("x"),
			ServerSideEncryption: algorithm}
		if id != "" {
			in.SSEKMSKeyId = &id
		}
		_, err := client.PutObject(ctx, in)
		return err
	}
	role := w.as("role")
	object := allow("arn:aws:s3:::b-1/k", "s3:PutObject", "s3:GetObject")
	w.may(object)
	wantCode(t, "no header", put(w.Client, "", ""), "AccessDenied")
	wantCode(t, "no key", put(w.Client, "aws:kms", ""), "AccessDenied")
	wantCode(t, "S3's keys", put(w.Client, "AES256", ""), "AccessDenied")
	wantCode(t, "another key", put(w.Client, "aws:kms", other), "AccessDenied")
	wantCode(t, "without permission for the key", put(role, "aws:kms", key), "AccessDenied")
	w.may(object, allow(key, "kms:GenerateDataKey"))
	if err := put(role, "aws:kms", key); err != nil {
		t.Error(err)
	}
	_, _, err := w.get(role, "b-1", "k")
	wantCode(t, "read without permission for the key", err, "AccessDenied")
	w.may(object, allow(key, "kms:GenerateDataKey", "kms:Decrypt"))
	if _, _, err := w.get(role, "b-1", "k"); err != nil {
		t.Error(err)
	}
}

func TestVersions(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	w.put("b-1", "k", "before")
	w.put("b-1", "other", "before")
	state := func(status types.BucketVersioningStatus) {
		t.Helper()
		must(w.PutBucketVersioning(ctx, &sdk.PutBucketVersioningInput{Bucket: ptr("b-1"),
			VersioningConfiguration: &types.VersioningConfiguration{Status: status}}))(t)
	}
	names := map[string]string{"null": "null"} // by version ID, in the order of creation
	list := func(in sdk.ListObjectVersionsInput) []string {
		t.Helper()
		in.Bucket = ptr("b-1")
		out := must(w.ListObjectVersions(ctx, &in))(t)
		var all []string
		for _, v := range out.Versions {
			all = append(all, fmt.Sprint(*v.Key, " ", names[*v.VersionId], " ", *v.Size,
				map[bool]string{true: " latest"}[*v.IsLatest]))
		}
		for _, v := range out.DeleteMarkers {
			all = append(all, fmt.Sprint(*v.Key, " ", names[*v.VersionId], " marker",
				map[bool]string{true: " latest"}[*v.IsLatest]))
		}
		for _, p := range out.CommonPrefixes {
			all = append(all, *p.Prefix)
		}
		return all
	}
	want := func(what string, got []string, versions ...string) {
		t.Helper()
		if diff := cmp.Diff(versions, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	want("never versioned", list(sdk.ListObjectVersionsInput{}), "k null 6 latest", "other null 6 latest")
	state(types.BucketVersioningStatusEnabled)
	want("as before", list(sdk.ListObjectVersionsInput{}), "k null 6 latest", "other null 6 latest")
	one := *w.put("b-1", "k", "one").VersionId
	two := *w.put("b-1", "k", "second").VersionId
	names[one], names[two] = "one", "two"
	want("two more", list(sdk.ListObjectVersionsInput{Prefix: ptr("k")}), "k two 6 latest", "k one 3", "k null 6")
	read := func(id string) string {
		t.Helper()
		in := &sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("k")}
		if id != "" {
			in.VersionId = &id
		}
		out, err := w.GetObject(ctx, in)
		if err != nil {
			return err.Error()
		}
		defer out.Body.Close()
		body, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body) + " " + names[*out.VersionId]
	}
	for id, body := range map[string]string{"": "second two", one: "one one", two: "second two",
		"null": "before null"} {
		if got := read(id); got != body {
			t.Errorf("version %s: %q, want %q", names[id], got, body)
		}
	}
	del := func(id string) *sdk.DeleteObjectOutput {
		t.Helper()
		in := &sdk.DeleteObjectInput{Bucket: ptr("b-1"), Key: ptr("k")}
		if id != "" {
			in.VersionId = &id
		}
		return must(w.DeleteObject(ctx, in))(t)
	}
	marker := del("")
	if !aws.ToBool(marker.DeleteMarker) || aws.ToString(marker.VersionId) == "" {
		t.Errorf("deleted: %+v", marker)
	}
	names[*marker.VersionId] = "gone"
	want("deleted", list(sdk.ListObjectVersionsInput{Prefix: ptr("k")}), "k two 6", "k one 3", "k null 6",
		"k gone marker latest")
	if got := read(""); !strings.Contains(got, "NoSuchKey") {
		t.Errorf("read what is deleted: %s", got)
	}
	if got := read(*marker.VersionId); !strings.Contains(got, "MethodNotAllowed") {
		t.Errorf("read a marker: %s", got)
	}
	if got := read("nonsense"); !strings.Contains(got, "NoSuchVersion") {
		t.Errorf("read no version: %s", got)
	}
	_, err := w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("k"), Body: strings.NewReader("x"),
		IfMatch: ptr(`"abc"`)})
	wantCode(t, "replace what is deleted", err, "NoSuchKey")
	w.put("b-1", "of/k", "one")
	must(w.DeleteBucketPolicy(ctx, &sdk.DeleteBucketPolicyInput{Bucket: ptr("b-1")}))(t)

	del(*marker.VersionId)
	if got := read(""); got != "second two" {
		t.Errorf("without its marker: %s", got)
	}
	del(two)
	if got := read(""); got != "one one" {
		t.Errorf("without its newest: %s", got)
	}
	del(one)
	if got := read(""); got != "before null" {
		t.Errorf("without the next: %s", got)
	}
	three := *w.put("b-1", "k", "three").VersionId
	names[three] = "three"
	state(types.BucketVersioningStatusSuspended)
	w.put("b-1", "k", "null again")
	want("suspended", list(sdk.ListObjectVersionsInput{Prefix: ptr("k")}), "k null 10 latest", "k three 5")
	w.put("b-1", "k", "null")
	want("suspended, once more", list(sdk.ListObjectVersionsInput{Prefix: ptr("k")}), "k null 4 latest", "k three 5")
	if got := read(three); got != "three three" {
		t.Errorf("the one before: %s", got)
	}

	// Read the list in pages. Each answer contains the markers that the request for the next page needs.
	in, n := sdk.ListObjectVersionsInput{Bucket: ptr("b-1"), MaxKeys: ptr(int32(1))}, 0
	var paged []string
	for {
		out := must(w.ListObjectVersions(ctx, &in))(t)
		for _, v := range out.Versions {
			paged = append(paged, *v.Key+" "+names[*v.VersionId])
		}
		if n++; !*out.IsTruncated || n == 9 {
			break
		}
		in.KeyMarker, in.VersionIdMarker = out.NextKeyMarker, out.NextVersionIdMarker
	}
	want("pages", paged, "k null", "k three", "of/k ", "other null")
	want("delimiter", list(sdk.ListObjectVersionsInput{Delimiter: ptr("/"), KeyMarker: ptr("k")}),
		"other null 6 latest", "of/")

	// Empty the bucket as Terraform does.
	_, err = w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")})
	wantCode(t, "delete what is not empty", err, "BucketNotEmpty")
	var all types.Delete
	for _, v := range must(w.ListObjectVersions(ctx, &sdk.ListObjectVersionsInput{Bucket: ptr("b-1")}))(t).Versions {
		all.Objects = append(all.Objects, types.ObjectIdentifier{Key: v.Key, VersionId: v.VersionId})
	}
	if out := must(w.DeleteObjects(ctx, &sdk.DeleteObjectsInput{Bucket: ptr("b-1"), Delete: &all}))(t); len(
		out.Errors) != 0 || len(out.Deleted) != 4 {
		t.Errorf("deleted: %+v", out)
	}
	want("empty", list(sdk.ListObjectVersionsInput{}))
	must(w.DeleteBucket(ctx, &sdk.DeleteBucketInput{Bucket: ptr("b-1")}))(t)
	w.bucket("b-1")
	want("created again", list(sdk.ListObjectVersionsInput{}))
}

func TestVersionPermissions(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	w.put("b-1", "k", "1")
	w.may(allow("arn:aws:s3:::b-1/*", "s3:GetObject", "s3:DeleteObject"))
	_, err := w.as("role").GetObject(ctx, &sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("k"),
		VersionId: ptr("null")})
	wantCode(t, "get a version", err, "AccessDenied")
	_, err = w.as("role").DeleteObject(ctx, &sdk.DeleteObjectInput{Bucket: ptr("b-1"), Key: ptr("k"),
		VersionId: ptr("null")})
	wantCode(t, "delete a version", err, "AccessDenied")
	w.may(allow("arn:aws:s3:::b-1/*", "s3:GetObjectVersion"))
	must(w.as("role").GetObject(ctx, &sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("k"), VersionId: ptr("null")}))(
		t).Body.Close()
	if !slices.Contains(w.asked, "s3:DeleteObjectVersion arn:aws:s3:::b-1/k denied") {
		t.Errorf("asked: %v", w.asked)
	}
}

// TestOtherRequestForms checks forms of requests that other tests do not use: buckets as host names, presigned URLs,
// chunks with trailers, and no signature.
func TestOtherRequestForms(t *testing.T) {
	w := newTestFront(t)
	ctx := t.Context()
	w.bucket("b-1")
	host := strings.Replace(w.url, "127.0.0.1", "localhost", 1)
	local := sdk.New(sdk.Options{
		Region: region, BaseEndpoint: &host, RetryMaxAttempts: 1, Credentials: credentials.NewStaticCredentialsProvider(
			"account", "secret-of-the-test", ""),
		HTTPClient: clientTo(w.url),
	})
	must(local.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("a/b"),
		Body: strings.NewReader("by name")}))(t)
	if body, _, err := w.get(w.Client, "b-1", "a/b"); body != "by name" {
		t.Errorf("by name: %q, %v", body, err)
	}
	// A stream without a known length is sent in chunks, with its checksum in the trailer.
	must(w.PutObject(ctx, &sdk.PutObjectInput{
		Bucket: ptr("b-1"), Key: ptr("chunks"), Body: io.LimitReader(strings.NewReader(strings.Repeat("x", 100<<10)),
			100<<10), ContentLength: ptr(int64(100 << 10)),
		ContentEncoding: ptr("gzip"),
	}, func(o *sdk.Options) {
		// The SDK sends chunks only over HTTPS.
		o.BaseEndpoint, o.HTTPClient = ptr(strings.Replace(w.url, "http:", "https:", 1)), plain{t}
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported
	}))(t)
	out := must(w.GetObject(ctx, &sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("chunks"),
		ChecksumMode: types.ChecksumModeEnabled}))(t)
	if *out.ContentLength != 100<<10 || aws.ToString(out.ContentEncoding) != "gzip" || out.ChecksumCRC32 == nil {
		t.Errorf("chunks: %+v", out)
	}
	signed := must(sdk.NewPresignClient(w.Client).PresignGetObject(ctx,
		&sdk.GetObjectInput{Bucket: ptr("b-1"), Key: ptr("a/b")}, sdk.WithPresignExpires(time.Minute)))(t)
	for url, want := range map[string]int{signed.URL: http.StatusOK, w.url + "/b-1/a/b": http.StatusForbidden, w.url +
		"/": http.StatusForbidden} {
		answer, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("get %s: %s", url, answer.Status)
		}
	}
}

// plain sends HTTPS requests over plain HTTP.
type plain struct{ t *testing.T }

func (p plain) Do(r *http.Request) (*http.Response, error) {
	if !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		p.t.Errorf("a body that is not in chunks: %s", r.Header.Get("X-Amz-Content-Sha256"))
	}
	r.URL.Scheme = "http"
	return http.DefaultClient.Do(r)
}

// TestClientsHangUp hangs up during requests to a bucket with versions. Afterwards, all versions can be deleted, and
// then the bucket can be deleted.
func TestClientsHangUp(t *testing.T) {
	hermetic(t)
	w := newTestFront(t)
	w.bucket("b-1")
	must(w.PutBucketVersioning(t.Context(), &sdk.PutBucketVersioningInput{Bucket: ptr("b-1"),
		VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled}}))(t)
	w.put("b-1", "k", "first")
	for n := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*200*time.Microsecond)
		_, _ = w.PutObject(ctx, &sdk.PutObjectInput{Bucket: ptr("b-1"), Key: ptr("k"), Body: strings.NewReader("next")})
		cancel()
	}
	w.put("b-1", "k", "last")
	for {
		out := must(w.ListObjectVersions(t.Context(), &sdk.ListObjectVersionsInput{Bucket: ptr("b-1")}))(t)
		for _, v := range out.Versions {
			must(w.DeleteObject(t.Context(), &sdk.DeleteObjectInput{Bucket: ptr("b-1"), Key: v.Key,
				VersionId: v.VersionId}))(t)
		}
		_, err := w.DeleteBucket(t.Context(), &sdk.DeleteBucketInput{Bucket: ptr("b-1")})
		if err == nil {
			return
		}
		if len(out.Versions) == 0 { // else a request whose client had hung up came late
			t.Fatal(err)
		}
	}
}

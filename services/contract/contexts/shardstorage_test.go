package contexts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/contexts"
)

// TestShardStorage reads buckets of shards and writes them again.
func TestShardStorage(t *testing.T) {
	for text, want := range map[string]map[string]contexts.ShardStorage{
		"":                  {},
		"a=gcs://my-bucket": {"a": {Storage: config.Storage{Provider: "gcs", Bucket: "my-bucket"}}},
		"a=file:///srv/b%2Cc?prefix=x,b=s3://b/prod/eu?endpoint=http%3A%2F%2F127.0.0.1%3A9000&path_style=true&" +
			"profile=p&region=eu": {
			"a": {Storage: config.Storage{Provider: "file", Bucket: "/srv/b,c", Prefix: "x"}},
			"b": {Storage: config.Storage{Provider: "s3", Bucket: "b", Prefix: "prod/eu", Region: "eu",
				Endpoint: "http://127.0.0.1:9000"}, PathStyle: true, Profile: "p"},
		},
	} {
		got, err := contexts.ParseShardStorage(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v\n%s", text, err, diff)
		}
		if again := contexts.FormatShardStorage(got); again != text {
			t.Errorf("%q becomes %q", text, again)
		}
	}
	for text, want := range map[string]string{
		"my-bucket":                   "want shard=PROVIDER://BUCKET",
		"a=my-bucket":                 `"" is none of`,
		"A B=gcs://b":                 "shard: ",
		"a=gs://b":                    `the provider "gs" is none of`,
		"a=gcs://":                    "the bucket is missing",
		"a=gcs://b,a=gcs://c":         "shard a has two buckets",
		"a=s3://b?regoin=eu":          `there is no "regoin": there are endpoint, path_style, profile, region`,
		"a=s3://b?path_style=perhaps": "path_style: ",
	} {
		if _, err := contexts.ParseShardStorage(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

package aws

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// FuzzDecodeTags decodes arbitrary tags, because anyone with permission to tag instances may write any tags on the
// provider's VMs. If tags are decoded without a warning, encoding the result must give tags of the same meaning.
func FuzzDecodeTags(f *testing.F) {
	f.Add("nstance:managed=true\nnstance:cluster=c\nnstance:shard=s\nnstance:instance=wrk06gx5zsg2nrrqcrz0000000000\n" +
		"nstance:term=3\nnstance:on-demand=true\nnstance:created-at=2026-07-01T12:00:00.5Z")
	f.Add("nstance:term=-1\nnstance:instance=x\nnstance:on-demand=perhaps")
	f.Add("nstance:created-at=0000-01-01T00:00:00+24:00\nnstance:term=18446744073709551615")
	f.Fuzz(func(t *testing.T, text string) {
		var list []types.Tag
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			list = append(list, types.Tag{Key: aws.String(key), Value: aws.String(value)})
		}
		tags, warning := decodeTags(types.Instance{Tags: list})
		if warning != "" {
			return
		}
		var again []types.Tag
		for key, value := range encodeTags(tags, tags.Instance.String()) {
			again = append(again, types.Tag{Key: aws.String(key), Value: aws.String(value)})
		}
		back, warning := decodeTags(types.Instance{Tags: again})
		if warning != "" || !back.CreatedAt.Equal(tags.CreatedAt) {
			t.Errorf("%q: %s", text, warning)
		} else if back.CreatedAt = tags.CreatedAt; back != tags {
			t.Errorf("%q changes when written: %v, %v", text, tags, back)
		}
	})
}

package lab

import (
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

// Inventory returns all resources of all services, sorted. After a destroy it lists what would cost money or obstruct
// later stacks.
func (l *Lab) Inventory(t *testing.T) (found []string) {
	t.Helper()
	config := l.Config()
	access, secret := l.Cloud.ObserverCredentials()
	config.Credentials = credentials.NewStaticCredentialsProvider(access, secret, "")
	all, err := account.NewAWS(config).Inventory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range all {
		found = append(found, resource.String())
	}
	slices.Sort(found)
	return found
}

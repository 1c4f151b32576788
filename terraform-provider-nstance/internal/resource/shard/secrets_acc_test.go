package shard_test

import (
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/secretstore"
	secretstores "github.com/nstance-kit/nstance/services/store/secretstore/open"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/acctest"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
)

// TestAccSecretsDoNotMove checks that another store of secrets is refused while it has no key of the cluster's CA, also
// if the store is known only after the apply.
func TestAccSecretsDoNotMove(t *testing.T) {
	acctest.Acceptance(t)
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(cloud)
	t.Cleanup(func() {
		server.Close()
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	access, secret := cloud.Credentials()
	for name, value := range map[string]string{"AWS_ENDPOINT_URL_SECRETS_MANAGER": server.URL,
		"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": cloud.Region()} {
		t.Setenv(name, value)
	}
	settings := config.Secrets{Provider: "aws-secrets-manager", Prefix: "nstance/example/"}
	store, err := secretstores.Open(t.Context(), settings, secretstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := acctest.File(t)
	present := typed(b, options{})
	moved := func(provider string) string {
		return strings.Replace(present, `secrets = { encryption_key`,
			`secrets = { provider = `+provider+`, prefix = "nstance/example/", encryption_key`, 1)
	}
	inService := `"aws-secrets-manager"`
	known := moved(inService)
	both := strings.Replace(known, b.Provider(), b.Provider("secrets = { provider = "+inService+
		`, prefix = "nstance/example/" }`), 1)
	later := moved("terraform_data.store.output") + `resource "terraform_data" "store" { input = ` + inService + " }\n"
	refused := regexp.MustCompile(`The\s+secrets\s+of\s+cluster\s+example\s+do\s+not\s+move`)
	resource.Test(t, resource.TestCase{ProtoV6ProviderFactories: acctest.Factories(), Steps: []resource.TestStep{
		{Config: present},
		{Config: known}, // the cluster has no CA yet
		{Config: present},
		{Config: known, PlanOnly: true, ExpectError: refused, PreConfig: func() {
			if _, _, err := b.State(t).EnsureCA(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{Config: later, ExpectError: refused},
		{Config: both, PlanOnly: true, ExpectError: refused},
		{Config: strings.Replace(present, "secrets = {", `secrets = { cache_ttl = "1m0s",`, 1)},
		{Config: both, PreConfig: func() {
			value := secretstore.NewValue([]byte("x"))
			if err := store.Put(t.Context(), secretstore.CAKey, value, secretstore.Any); err != nil {
				t.Fatal(err)
			}
		}},
	}})
}

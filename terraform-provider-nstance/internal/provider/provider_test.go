package provider_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
)

// TestEverythingIsDescribed checks that every schema element has a description. The registry documents are generated
// from the descriptions.
func TestEverythingIsDescribed(t *testing.T) {
	server, err := providerserver.NewProtocol6WithError(provider.New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{})
	if err != nil || len(answer.Diagnostics) > 0 {
		t.Fatalf("%v, %v", err, answer.Diagnostics)
	}
	count := 0
	described := func(at, text string) {
		count++
		if text = strings.TrimSpace(text); !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "`") {
			t.Errorf("%s is described as %q", at, text)
		}
	}
	var attributes func(at string, list []*tfprotov6.SchemaAttribute)
	attributes = func(at string, list []*tfprotov6.SchemaAttribute) {
		for _, a := range list {
			described(at+"."+a.Name, a.Description)
			if a.NestedType != nil {
				attributes(at+"."+a.Name, a.NestedType.Attributes)
			}
		}
	}
	all := map[string]*tfprotov6.Schema{"provider": answer.Provider}
	for kind, schemas := range map[string]map[string]*tfprotov6.Schema{
		"resource ": answer.ResourceSchemas, "data ": answer.DataSourceSchemas,
		"ephemeral ": answer.EphemeralResourceSchemas,
	} {
		for name, s := range schemas {
			all[kind+name] = s
		}
	}
	for name, s := range all {
		described(name, s.Block.Description)
		attributes(name, s.Block.Attributes)
	}
	for name, f := range answer.Functions {
		described("function "+name, f.Description)
		parameters := f.Parameters
		if f.VariadicParameter != nil {
			parameters = append(parameters, f.VariadicParameter)
		}
		for _, p := range parameters {
			described("function "+name+" "+p.Name, p.Description)
		}
	}
	if len(answer.ResourceSchemas) != 6 || len(answer.DataSourceSchemas) != 4 ||
		len(answer.EphemeralResourceSchemas) != 3 || len(answer.Functions) != 5 || count < 180 {
		t.Errorf("%d resources, %d data sources, %d ephemeral resources, %d functions, %d texts",
			len(answer.ResourceSchemas), len(answer.DataSourceSchemas),
			len(answer.EphemeralResourceSchemas), len(answer.Functions), count)
	}
}

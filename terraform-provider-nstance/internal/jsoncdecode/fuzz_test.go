package jsoncdecode

import (
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// FuzzDecode checks that an accepted document becomes a valid Terraform value with the same content.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"a": [1, {"b": null}],}`, `"x"`, `[1e3, -0.5, 0.1] // c`, `{"a": 1, "a": 2}`, `null`, `[null, [], {}]`,
		`{"": true}`, `12345678901234567`, ``, `{`,
		`{"a": "\u0000\ud800"}`, `-0`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, document string) {
		decoded, problems := decode(document)
		tree, _ := config.ParseTree("document", []byte(document))
		if len(problems) > 0 {
			if decoded != nil || tree != nil {
				t.Errorf("%v beside %v", decoded, problems)
			}
			return
		}
		if _, err := types.DynamicValue(decoded).ToTerraformValue(t.Context()); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(tree, back(t, decoded)); diff != "" {
			t.Error(diff)
		}
	})
}

func back(t *testing.T, v attr.Value) any {
	t.Helper()
	switch v := v.(type) {
	case types.Object:
		out := map[string]any{}
		for name, inner := range v.Attributes() {
			out[name] = back(t, inner)
		}
		return out
	case types.Tuple:
		out := []any{}
		for _, inner := range v.Elements() {
			out = append(out, back(t, inner))
		}
		return out
	case types.String:
		return v.ValueString()
	case types.Bool:
		return v.ValueBool()
	case types.Number:
		n, accuracy := v.ValueBigFloat().Float64()
		if accuracy != big.Exact {
			t.Errorf("%s is not exact", v)
		}
		return n
	case types.Dynamic:
		if !v.IsNull() {
			t.Errorf("%v is neither a value nor null", v)
		}
	default:
		t.Errorf("%T", v)
	}
	return nil
}

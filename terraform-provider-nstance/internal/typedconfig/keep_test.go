package typedconfig_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/typedconfig"
)

// TestKeepChangesOnlyWhatDiffers writes each null list and map of a document as an empty one, wherever that does not
// change the document, and each JSON text in another format. One edited number in the bucket must then change one value.
func TestKeepChangesOnlyWhatDiffers(t *testing.T) {
	s := golden(t)
	want := string(config.Encode(s))
	root := tftypes.NewValue(tftypes.Object{AttributeTypes: types(t)}, typedconfig.Write(s, types(t)))
	var places []*tftypes.AttributePath
	_ = tftypes.Walk(root, func(at *tftypes.AttributePath, _ tftypes.Value) (bool, error) {
		places = append(places, at)
		return true, nil
	})
	other, changed := root, 0
	for _, place := range places {
		next, err := tftypes.Transform(other, func(at *tftypes.AttributePath, v tftypes.Value) (tftypes.Value, error) {
			if at.Equal(place) {
				return otherForm(v), nil
			}
			return v, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if next.Equal(other) {
			continue
		}
		r := typedconfig.Read(attributesOf(t, next))
		if len(r.Problems()) == 0 && string(config.Encode(r.Shard)) == want {
			other, changed = next, changed+1
		}
	}
	if changed < 30 {
		t.Fatalf("%d values have another form", changed)
	}
	if kept := typedconfig.Keep(attributesOf(t, other), typedconfig.Write(s, types(t))); !tftypes.NewValue(
		root.Type(), kept).Equal(other) {
		t.Error("a document that did not change gives other values")
	}
	edited := golden(t)
	for tenant, groups := range edited.Groups {
		for name, spec := range groups {
			size := 77
			spec.Size = &size
			edited.Groups[tenant][name] = spec
			diff, err := other.Diff(tftypes.NewValue(root.Type(), typedconfig.Keep(attributesOf(t, other),
				typedconfig.Write(edited, types(t)))))
			if err != nil {
				t.Fatal(err)
			}
			leaves := 0
			for _, d := range diff {
				if steps := d.Path.Steps(); steps[len(steps)-1] == tftypes.AttributeName("size") {
					leaves++
				} else if !strings.HasPrefix(d.Path.String(), `AttributeName("groups")`) || len(steps) > 2 {
					t.Errorf("%s changes too", d.Path)
				}
			}
			if leaves != 1 {
				t.Errorf("%d sizes change", leaves)
			}
			return
		}
	}
}

// otherForm returns another value that may encode to the same document.
func otherForm(v tftypes.Value) tftypes.Value {
	var text string
	switch typ := v.Type(); {
	case typ.Is(tftypes.List{}) && v.IsNull():
		return tftypes.NewValue(typ, []tftypes.Value{})
	case typ.Is(tftypes.Map{}) && v.IsNull():
		return tftypes.NewValue(typ, map[string]tftypes.Value{})
	case typ.Is(tftypes.String) && v.IsNull():
		return tftypes.NewValue(typ, "")
	case typ.Is(tftypes.String) && v.As(&text) == nil && strings.HasPrefix(text, "{"):
		return tftypes.NewValue(typ, " "+text)
	case typ.Is(tftypes.String) && v.As(&text) == nil && strings.HasSuffix(text, "m"):
		return tftypes.NewValue(typ, text+"0s")
	case typ.Is(tftypes.Bool) && v.IsNull():
		return tftypes.NewValue(typ, false)
	case typ.Is(tftypes.Number) && v.IsNull():
		return tftypes.NewValue(typ, 0)
	}
	return v
}

func attributesOf(t *testing.T, v tftypes.Value) map[string]tftypes.Value {
	t.Helper()
	var out map[string]tftypes.Value
	if err := v.As(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

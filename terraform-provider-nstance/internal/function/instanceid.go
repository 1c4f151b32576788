package function

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/function"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/nstance-kit/nstance/services/contract/ident"
)

var instanceIDParse = function.Definition{
	Summary: "Takes an instance ID apart",
	MarkdownDescription: "Splits an instance ID (a puidv7 such as `acc06bgm7733st2576nx5jht4ecjw`) into its " +
		"parts. Returns an object with `kind` (the prefix), `uuid`, `storage` (the form in bucket keys) and " +
		"`created_at` (RFC 3339, to the millisecond). For an invalid ID, it fails and says what is wrong.",
	Parameters: []function.Parameter{function.StringParameter{Name: "id", MarkdownDescription: "The instance ID."}},
	Return: function.ObjectReturn{AttributeTypes: map[string]attr.Type{
		"kind": types.StringType, "uuid": types.StringType, "storage": types.StringType,
		"created_at": types.StringType,
	}},
}

type parts struct {
	Kind      string `tfsdk:"kind"`
	UUID      string `tfsdk:"uuid"`
	Storage   string `tfsdk:"storage"`
	CreatedAt string `tfsdk:"created_at"`
}

func parseInstanceID(ctx context.Context, req function.RunRequest, resp *function.RunResponse) {
	var text string
	if resp.Error = req.Arguments.Get(ctx, &text); resp.Error != nil {
		return
	}
	p, err := splitID(text)
	if err != nil {
		resp.Error = function.NewArgumentFuncError(0, err.Error())
		return
	}
	resp.Error = resp.Result.Set(ctx, p)
}

// splitID splits an instance ID into its parts.
func splitID(text string) (parts, error) {
	id, err := ident.ParseID(text)
	if err != nil {
		return parts{}, err
	}
	if year := id.Time().Year(); year > 9999 { // IDs can hold later years, but RFC 3339 cannot
		return parts{}, fmt.Errorf("id %q is of the year %d", text, year)
	}
	return parts{
		Kind: id.Prefix(), UUID: strings.TrimSuffix(id.Storage(), "-"+id.Prefix()), Storage: id.Storage(),
		CreatedAt: id.Time().Format(time.RFC3339Nano),
	}, nil
}

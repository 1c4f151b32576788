package gcp

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// insertCall is the API call that takes args.
var insertCall = apiargs.Call{
	Name: "instances.insert", Reference: "the request body of instances.insert in the Compute Engine API reference",
	Fields: argFields, Root: "Instance", Reserved: reserved,
}

// reserved are the fields of an instance that args may not set, each with the reason.
var reserved = map[string]string{
	"deletionProtection": "the server must be able to delete its instances",
	"machineType":        "it is the group's instance_type",
	"name":               "it is the instance's ID",
	"zone":               "it is the shard's, server.provider.zone",
}

// DecodeArgs checks args against the fields and types of instances.insert and the server's own rules. It returns args
// with every value in the type of its field. Texts with numbers or booleans are converted, because templates yield only
// texts. Names are case-sensitive. A null counts as absent, because a merge uses null to unset a value.
//
// If templates is true, texts may contain templates that are not rendered yet. The result then leaves out each template
// in a field that is not of type text. https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	d := argsDecoder{apiargs.Decoder{Call: insertCall, Templates: templates}}
	decoded := d.Decode(args)
	d.checkRules(decoded)
	return decoded, d.Found
}

func checkArgs(args map[string]any) []cloud.Problem {
	_, problems := DecodeArgs(args, true)
	return problems
}

// argsDecoder checks args against the fields and types of the API, and against the additional rules of the server.
type argsDecoder struct{ apiargs.Decoder }

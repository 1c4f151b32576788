package gcp

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// call is the API call that takes args.
var call = apiargs.Call{
	Name: "instances.insert", Reference: "the request body of instances.insert in the Compute Engine API reference",
	Fields: argFields, Root: "Instance", Reserved: reserved, Rules: checkRules,
}

// reserved are the fields of an instance that args may not set, each with the reason.
var reserved = map[string]string{
	"deletionProtection": "the server must be able to delete its instances",
	"machineType":        "it is the group's instance_type",
	"name":               "it is the instance's ID",
	"zone":               "it is the shard's, server.provider.zone",
}

// DecodeArgs is [apiargs.Call.DecodeArgs] of the call.
// https://cloud.google.com/compute/docs/reference/rest/v1/instances/insert
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	return call.DecodeArgs(args, templates)
}

// argsDecoder checks args against the additional rules of the server.
type argsDecoder struct{ *apiargs.Decoder }

func checkRules(d *apiargs.Decoder, args map[string]any) { argsDecoder{d}.checkRules(args) }

package aws

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// call is the API call that takes args.
var call = apiargs.Call{
	Name: "RunInstances", Reference: "the request parameters of RunInstances in the EC2 API reference",
	Fields: argFields, Root: "RunInstancesInput", Reserved: reserved, Rules: checkRules,
}

// reserved are the fields of RunInstances that args may not set, each with the reason.
var reserved = map[string]string{
	"ClientToken":           "it is the instance's ID",
	"DisableApiTermination": "the server must be able to delete its instances",
	"DryRun":                "nothing would be created",
	"InstanceType":          "it is the group's instance_type",
	"MaxCount":              "every call creates one instance",
	"MinCount":              "every call creates one instance",
	"SubnetId":              reasonSubnet,
	"UserData":              "it is the template's userdata",
}

const reasonSubnet = "it is taken from the group's subnet_pool"

// DecodeArgs is [apiargs.Call.DecodeArgs] of the call.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	return call.DecodeArgs(args, templates)
}

// argsDecoder checks args against the additional rules of the server.
type argsDecoder struct{ *apiargs.Decoder }

func checkRules(d *apiargs.Decoder, args map[string]any) { argsDecoder{d}.checkRules(args) }

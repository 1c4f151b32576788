package aws

import (
	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/apiargs"
)

//go:generate go test -run ^TestArgFieldsAreCurrent$ . -update

// runInstancesCall is the API call that takes args.
var runInstancesCall = apiargs.Call{
	Name: "RunInstances", Reference: "the request parameters of RunInstances in the EC2 API reference",
	Fields: argFields, Root: "RunInstancesInput", Reserved: reserved,
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

// DecodeArgs checks args against the fields and types of the RunInstances API and the server's own rules. It returns
// args with every value in the type of its field. Texts with numbers or booleans are converted, because templates yield
// only texts. Names are case-sensitive. A null counts as absent, because a merge uses null to unset a value.
//
// If templates is true, texts may contain templates that are not rendered yet. The result then leaves out each template
// in a field that is not of type text. https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html
func DecodeArgs(args map[string]any, templates bool) (map[string]any, []cloud.Problem) {
	d := argsDecoder{apiargs.Decoder{Call: runInstancesCall, Templates: templates}}
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

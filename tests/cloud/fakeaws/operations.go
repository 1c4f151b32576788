package fakeaws

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/s3"
)

// The possible callers of an operation in operations.txt.
const (
	CallerStacks   = "stacks"   // the AWS provider or a server, while tests/stacks runs
	CallerTests    = "tests"    // another test of this repository
	CallerProvider = "provider" // the AWS provider, for settings of the modules that tests/stacks does not use
	CallerPlanned  = "planned"  // no caller yet: planned for checks of zones
)

//go:embed operations.txt
var operationsText string

// CalledOperations returns the caller of each operation in operations.txt. For "ec2:RunInstances", the caller is
// "stacks". TestOperations compares the operations in the file with those of a Cloud. tests/stacks compares the
// operations whose caller is CallerStacks with the calls that its Cloud recorded.
func CalledOperations() (map[string]string, error) {
	callers := map[string]string{}
	for line := range strings.Lines(operationsText) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 || callers[fields[0]] != "" ||
			!slices.Contains([]string{CallerStacks, CallerTests, CallerProvider, CallerPlanned}, fields[1]) {
			return nil, fmt.Errorf("operations.txt: %q is not a new operation and its caller", line)
		}
		callers[fields[0]] = fields[1]
	}
	return callers, nil
}

// Operations returns the operations that this cloud implements, such as "ec2:RunInstances", sorted. Those of S3 are
// included even without an S3 backend.
func (c *Cloud) Operations() []string {
	var all []string
	for service, handlers := range c.handlers {
		for action := range maps.Keys(handlers) {
			all = append(all, service+":"+action)
		}
	}
	for _, action := range s3.Operations() {
		all = append(all, "s3:"+action)
	}
	slices.Sort(all)
	return all
}

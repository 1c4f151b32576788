package aws

import (
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/aws"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// decodeArgs returns a request with the values of rendered args. The error lists all problems, each with its path.
func decodeArgs(args map[string]any) (*ec2.RunInstancesInput, error) {
	decoded, found := contract.DecodeArgs(args, false)
	var problems config.Problems
	for _, p := range found {
		problems = append(problems, config.Problem{Path: config.JoinPath(append([]any{"args"}, p.Path...)...),
			Message: p.Message, Hint: p.Hint, Warning: p.WhenWritten})
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	// The decoded values have the types of the SDK's fields, and the API and the SDK name the fields alike. So JSON can
	// copy the values into the request.
	text, err := json.Marshal(decoded)
	if err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	in := &ec2.RunInstancesInput{}
	if err := json.Unmarshal(text, in); err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	return in, nil
}

// deref returns the value that p points to, or the zero value if p is nil.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

package ec2

import (
	"encoding/base64"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// consoleSize is the size of the console output that EC2 keeps, in bytes.
const consoleSize = 64 << 10

// getConsoleOutput returns the end of the console output. Without the parameter Latest, EC2 updates the output of a
// running instance only when the instance changes its state. The fake always has the latest output.
// https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetConsoleOutput.html
func (s *Service) getConsoleOutput(c *wire.Call) (any, error) {
	var in struct {
		DryRun, Latest bool
		InstanceID     string `query:"InstanceId"`
	}
	if err := c.Decode(&in); err != nil {
		return nil, err
	}
	i, err := s.instanceByID(in.InstanceID)
	if err != nil {
		return nil, err
	}
	if err := s.allow(c, c.Action, i.id); err != nil {
		return nil, err
	}
	if err := dryRun(in.DryRun); err != nil {
		return nil, err
	}
	if in.Latest && i.kind.hypervisor != "nitro" {
		return nil, failf("UnsupportedOperation",
			"This instance type does not support retrieving the latest console logs. Supported instance types are "+
				"those that use the Nitro hypervisor.")
	}
	var text []byte
	if i.console != nil {
		text = i.console()
	}
	return struct {
		InstanceID string    `xml:"instanceId"`
		Output     string    `xml:"output,omitempty"`
		Timestamp  wire.Time `xml:"timestamp"`
	}{i.id, base64.StdEncoding.EncodeToString(text[max(0, len(text)-consoleSize):]), wire.Time{Time: s.cfg.Now()}}, nil
}

// Package packer holds the systemd units of the machine images. A boot script that downloads the server or the agent
// installs the same units.
package packer

import _ "embed" // for the units

// The texts of the systemd units in the machine images.
var (
	//go:embed files/nstance-server.service
	ServerUnit string
	//go:embed files/nstance-server-health.service
	ServerHealthUnit string
	//go:embed files/nstance-agent.service
	AgentUnit string
)

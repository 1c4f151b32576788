// Package packer holds the systemd units of the machine images. Boot scripts that download a program install the same
// units.
package packer

import _ "embed" // for the units

// The units, as in the images.
var (
	//go:embed files/nstance-server.service
	ServerUnit string
	//go:embed files/nstance-server-health.service
	ServerHealthUnit string
	//go:embed files/nstance-agent.service
	AgentUnit string
)

package infra

// Console is what the machine of a server has written to its console.
type Console struct {
	// Machine is the provider's ID of the machine. State is the machine's state in the provider's words.
	Machine string `json:"machine"`
	State   string `json:"state"`
	Output  string `json:"output"` // empty if the provider has none yet
}

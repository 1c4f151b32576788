package v1beta1

// Initialization says how far the infrastructure has come up for the first time. Cluster API reads it until it is true,
// and not afterwards.
type Initialization struct {
	// provisioned is true once the infrastructure was there.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

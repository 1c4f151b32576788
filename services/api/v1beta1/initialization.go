package v1beta1

// Initialization is the initial provisioning state of the infrastructure. Cluster API waits until the field
// "provisioned" is true.
type Initialization struct {
	// provisioned is true once the infrastructure has been provisioned for the first time. It never becomes false
	// again.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

package capacity

// clouds has a function for each cloud with named machine types. It returns the size of a type, or false if the type is
// unknown. A name must have one meaning in all clouds. To add a cloud, add its function here.
var clouds = []func(instanceType string) (machine, bool){aws, gcp}

package capacity

// clouds has one function for each cloud with named machine types. The function returns the size of a type, or false if
// the cloud has no such type. No two clouds may use one name for different types. To add a cloud, add its function
// here.
var clouds = []func(instanceType string) (machine, bool){aws, gcp}

// Package capacity knows the machine types of providers: their number of CPUs and their memory. A shard's provider
// describes them ([Source]). Tables in this package are the fallback ([Of]).
//
// Invariant: the package returns only values that are certain. The cluster autoscaler trusts them when it decides
// whether a pod fits on a machine that does not exist yet. If the package has no value for a type, the autoscaler
// cannot scale a group of this type up from zero. Everything else works.
package capacity

import (
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// machine is the size of a machine type. Memory is in MiB.
type machine struct {
	cpus int64
	mib  int64
}

// Of returns the CPUs and the memory of an instance type of any cloud, or nil if the type is unknown. The memory is the
// whole memory of the machine, including the part that kernel and firmware reserve.
func Of(instanceType string) corev1.ResourceList {
	for _, sizeOf := range clouds {
		if m, ok := sizeOf(instanceType); ok {
			return m.resources()
		}
	}
	return nil
}

func (m machine) resources() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(m.cpus, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(m.mib<<20, resource.BinarySI),
	}
}

// digits matches a number in a type name. The limit of 7 digits prevents an integer overflow.
var digits = regexp.MustCompile(`^[1-9][0-9]{0,6}$`)

func number(text string) (int64, bool) {
	if !digits.MatchString(text) {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

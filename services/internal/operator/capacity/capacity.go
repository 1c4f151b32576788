// Package capacity owns what is known of providers' machine types: how many CPUs and how much memory a machine has.
//
// Invariant: what is not known for certain is not said. The cluster autoscaler takes what is said here for the truth
// when it decides whether a pod fits on a machine that does not exist yet; saying nothing only costs it scaling from
// zero.
package capacity

import (
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// machine is what a type has.
type machine struct {
	cpus int64
	mib  int64
}

// Of returns the CPUs and the memory of an instance type of AWS or GCP; nil when the type is not known. Types of AWS
// have a dot in their names, those of GCP do not, so there is one reading. It is the machine's whole memory: kernel and
// firmware keep some of it.
func Of(instanceType string) corev1.ResourceList {
	m, ok := aws(instanceType)
	if !ok {
		m, ok = gcp(instanceType)
	}
	if !ok {
		return nil
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(m.cpus, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(m.mib<<20, resource.BinarySI),
	}
}

// digits is a number as providers write it in names, and far from what an integer cannot hold.
var digits = regexp.MustCompile(`^[1-9][0-9]{0,6}$`)

func number(text string) (int64, bool) {
	if !digits.MatchString(text) {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

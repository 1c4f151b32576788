// Package vmsize reads instance types of clouds that have no named types. Such a type states the size of the VM.
package vmsize

import (
	"fmt"
	"regexp"
	"strconv"
)

// Size is the size of a VM. The text of instance_type is the number of CPUs, the letter x, and the MiB of memory, such
// as 2x4096.
type Size struct {
	CPUs      int
	MemoryMiB int64
}

var sizeText = regexp.MustCompile(`^([1-9][0-9]{0,3})x([1-9][0-9]{0,8})$`)

// Parse parses an instance_type.
func Parse(text string) (Size, error) {
	m := sizeText.FindStringSubmatch(text)
	if m == nil {
		return Size{}, fmt.Errorf("instance type %q is not CPUS x MIB, such as 2x4096", text)
	}
	cpus, _ := strconv.Atoi(m[1]) // neither number is large
	mib, _ := strconv.ParseInt(m[2], 10, 64)
	return Size{CPUs: cpus, MemoryMiB: mib}, nil
}

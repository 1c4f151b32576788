package capacity

import (
	"slices"
	"strings"
)

// The data of GCP is from the columns vCPUs and memory on
// https://cloud.google.com/compute/docs/general-purpose-machines, …/compute-optimized-machines,
// …/memory-optimized-machines and …/accelerator-optimized-machines. Type names contain no dot. On these pages, GB means
// GiB.

// predefined describes the series whose types are named `{series}-{vCPUs}`. kib is the memory per vCPU in KiB. cpus
// lists the numbers of vCPUs for which there is a type. The memory of a type is rounded to the nearest MiB, but for c4
// it is rounded down to a whole GiB.
var predefined = map[string]struct {
	kib   int64
	cpus  []int64
	whole int64 // Memory is a multiple of this many MiB; 0 means one.
}{
	"n1-standard": {3840 << 10, []int64{1, 2, 4, 8, 16, 32, 64, 96}, 0},
	"n1-highmem":  {6656 << 10, []int64{2, 4, 8, 16, 32, 64, 96}, 0},
	"n1-highcpu":  {943718, []int64{2, 4, 8, 16, 32, 64, 96}, 0}, // 0.9 GiB
	"n2-standard": {4 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96, 128}, 0},
	// n2-highmem-128 has less memory per vCPU; see fixed.
	"n2-highmem":   {8 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96}, 0},
	"n2-highcpu":   {1 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96}, 0},
	"n2d-standard": {4 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224}, 0},
	"n2d-highmem":  {8 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96}, 0},
	"n2d-highcpu":  {1 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 224}, 0},
	"n4-standard":  {4 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80}, 0},
	"n4-highmem":   {8 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80}, 0},
	"n4-highcpu":   {2 << 20, []int64{2, 4, 8, 16, 32, 48, 64, 80}, 0},
	"e2-standard":  {4 << 20, []int64{2, 4, 8, 16, 32}, 0},
	"e2-highmem":   {8 << 20, []int64{2, 4, 8, 16}, 0},
	"e2-highcpu":   {1 << 20, []int64{2, 4, 8, 16, 32}, 0},
	"t2a-standard": {4 << 20, []int64{1, 2, 4, 8, 16, 32, 48}, 0},
	"t2d-standard": {4 << 20, []int64{1, 2, 4, 8, 16, 32, 48, 60}, 0},
	"c2-standard":  {4 << 20, []int64{4, 8, 16, 30, 60}, 0},
	"c2d-standard": {4 << 20, []int64{2, 4, 8, 16, 32, 56, 112}, 0},
	"c2d-highmem":  {8 << 20, []int64{2, 4, 8, 16, 32, 56, 112}, 0},
	"c2d-highcpu":  {2 << 20, []int64{2, 4, 8, 16, 32, 56, 112}, 0},
	"c3-standard":  {4 << 20, []int64{4, 8, 22, 44, 88, 176}, 0},
	"c3-highmem":   {8 << 20, []int64{4, 8, 22, 44, 88, 176}, 0},
	"c3-highcpu":   {2 << 20, []int64{4, 8, 22, 44, 88, 176}, 0},
	"c3d-standard": {4 << 20, []int64{4, 8, 16, 30, 60, 90, 180, 360}, 0},
	"c3d-highmem":  {8 << 20, []int64{4, 8, 16, 30, 60, 90, 180, 360}, 0},
	"c4-standard":  {3840 << 10, []int64{2, 4, 8, 16, 32, 48, 96, 192}, 1 << 10},
	"c4-highmem":   {7936 << 10, []int64{2, 4, 8, 16, 32, 48, 96, 192}, 1 << 10},
	"c4-highcpu":   {2 << 20, []int64{2, 4, 8, 16, 32, 48, 96, 192}, 0},
	"c4a-standard": {4 << 20, []int64{1, 2, 4, 8, 16, 32, 48, 64, 72}, 0},
	"c4a-highmem":  {8 << 20, []int64{1, 2, 4, 8, 16, 32, 48, 64, 72}, 0},
	"c4a-highcpu":  {2 << 20, []int64{1, 2, 4, 8, 16, 32, 48, 64, 72}, 0},
	"g2-standard":  {4 << 20, []int64{4, 8, 12, 16, 24, 32, 48, 96}, 0},
}

// fixed holds the types whose size does not follow from their name. Older types with shared cores have one vCPU, and
// newer ones have two.
var fixed = map[string]machine{
	"e2-micro": {2, 1 << 10}, "e2-small": {2, 2 << 10}, "e2-medium": {2, 4 << 10}, "f1-micro": {1, 614},
	"g1-small":       {1, 1740},
	"n2-highmem-128": {128, 864 << 10},
	"m1-ultramem-40": {40, 961 << 10}, "m1-ultramem-80": {80, 1922 << 10}, "m1-ultramem-160": {160, 3844 << 10},
	"m1-megamem-96":   {96, 1468006},
	"m2-ultramem-208": {208, 5888 << 10}, "m2-ultramem-416": {416, 11776 << 10}, "m2-megamem-416": {416, 5888 << 10},
	"m2-hypermem-416": {416, 8832 << 10},
	"m3-ultramem-32":  {32, 976 << 10}, "m3-ultramem-64": {64, 1952 << 10}, "m3-ultramem-128": {128, 3904 << 10},
	"m3-megamem-64": {64, 976 << 10}, "m3-megamem-128": {128, 1952 << 10},
	"a2-highgpu-1g": {12, 85 << 10}, "a2-highgpu-2g": {24, 170 << 10}, "a2-highgpu-4g": {48, 340 << 10},
	"a2-highgpu-8g": {96, 680 << 10}, "a2-megagpu-16g": {96, 1360 << 10},
}

// custom lists the series that have custom types, which are named `{series}-custom-{vCPUs}-{MiB}`. The name of a custom
// type of n1 may omit the series
// (https://cloud.google.com/compute/docs/instances/creating-instance-with-custom-machine-type).
var custom = []string{"n1", "n2", "n2d", "n4", "e2"}

func gcp(instanceType string) (machine, bool) {
	if m, ok := fixed[instanceType]; ok {
		return m, true
	}
	if series, rest, ok := strings.Cut("-"+instanceType, "-custom-"); ok {
		series = strings.TrimPrefix(series, "-")
		// A custom type with the suffix -ext has more memory per vCPU than its series normally permits.
		cpus, memory, _ := strings.Cut(strings.TrimSuffix(rest, "-ext"), "-")
		n, valid := number(cpus)
		mib, sized := number(memory)
		// The memory of a custom type is a multiple of 256 MiB.
		return machine{n, mib}, valid && sized && n <= 512 && mib%256 == 0 &&
			(series == "" || slices.Contains(custom, series))
	}
	i := strings.LastIndexByte(instanceType, '-')
	if i < 0 {
		return machine{}, false
	}
	series, ok := predefined[instanceType[:i]]
	cpus, valid := number(instanceType[i+1:])
	if !ok || !valid || !slices.Contains(series.cpus, cpus) {
		return machine{}, false
	}
	mib := (cpus*series.kib + 512) >> 10
	if series.whole > 0 {
		mib -= mib % series.whole
	}
	return machine{cpus, mib}, true
}

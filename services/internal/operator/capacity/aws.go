package capacity

import (
	"slices"
	"strings"
)

// The data of AWS is from the columns vCPUs and memory of tables at
// https://docs.aws.amazon.com/ec2/latest/instancetypes/. The tables are on the pages about general purpose, compute
// optimized, memory optimized, storage optimized and accelerated computing types. All type names contain a dot.

// ratios is the memory per vCPU in MiB, by family. It has only families in which all sizes have the same ratio.
var ratios = func() map[string]int64 {
	all := map[string]int64{}
	for _, r := range []struct {
		mib      int64
		families string
	}{
		{2 << 10,
			"a1 c5 c5a c5ad c5d c6a c6g c6gd c6gn c6i c6id c6in c7a c7g c7gd c7gn c7i c7i-flex c8a c8g c8gb c8gd " +
				"c8gn c8i c8i-flex g5g inf1"},
		{4 << 10,
			"m4 m5 m5a m5ad m5d m5dn m5n m5zn m6a m6g m6gd m6i m6id m6idn m6in m7a m7g m7gd m7i m7i-flex m8a m8g " +
				"m8gb m8gd m8gn m8i m8i-flex " +
				"d3en g4ad g4dn g5 g6 h1 im4gn inf2 trn1"},
		{6 << 10, "is4gen"},
		{7808, "d2 i3 p3 r4"}, // 7.625 GiB
		{8 << 10,
			"r5 r5a r5ad r5b r5d r5dn r5n r6a r6g r6gd r6i r6id r6idn r6in r7a r7g r7gd r7i r7iz r8a r8g r8gb r8gd " +
				"r8gn r8i r8i-flex " +
				"d3 g6e gr6 i3en i4g i4i i7i i7ie i8g i8ge z1d"},
		{15616, "x1"}, // 15.25 GiB
		{16 << 10, "x2gd x2idn x8g"},
		{31232, "x1e"}, // 30.5 GiB
		{32 << 10, "x2iedn x2iezn"},
	} {
		for family := range strings.FieldsSeq(r.families) {
			all[family] = r.mib
		}
	}
	return all
}()

// medium lists the families that have a type with the size "medium" and one vCPU.
var medium = strings.Fields(
	"a1 c6g c6gd c6gn c7a c7g c7gd c7gn c8a c8g c8gb c8gd c8gn is4gen m6g m6gd m7a m7g m7gd m8a m8g m8gb m8gd m8gn " +
		"r6g r6gd r7a r7g r7gd r8a r8g r8gb r8gd r8gn x2gd x8g")

// xlarges are the existing multiples of xlarge, which has four vCPUs.
var xlarges = []int64{2, 3, 4, 6, 8, 9, 10, 12, 16, 18, 24, 32, 48, 96}

// exceptions are the types whose vCPUs or memory do not follow from ratios and from the size in the type's name.
var exceptions = map[string]machine{
	// Burstable: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-performance-instances.html
	"t2.nano": {1, 512}, "t2.micro": {1, 1 << 10}, "t2.small": {1, 2 << 10}, "t2.medium": {2, 4 << 10},
	"t2.large": {2, 8 << 10}, "t2.xlarge": {4, 16 << 10}, "t2.2xlarge": {8, 32 << 10},
	// These types belong to families in which the memory per vCPU is not the same for all sizes.
	"c4.large": {2, 3840}, "c4.xlarge": {4, 7680}, "c4.2xlarge": {8, 15 << 10}, "c4.4xlarge": {16, 30 << 10},
	"c4.8xlarge": {36, 60 << 10},
	"c5n.large":  {2, 5376}, "c5n.xlarge": {4, 10752}, "c5n.2xlarge": {8, 21 << 10}, "c5n.4xlarge": {16, 42 << 10},
	"c5n.9xlarge": {36, 96 << 10}, "c5n.18xlarge": {72, 192 << 10},
	"d2.8xlarge":    {36, 244 << 10},
	"p3dn.24xlarge": {96, 768 << 10}, "p4d.24xlarge": {96, 1152 << 10}, "p4de.24xlarge": {96, 1152 << 10},
	"p5.48xlarge": {192, 2048 << 10}, "p5en.48xlarge": {192, 2048 << 10},
	"trn1n.32xlarge": {128, 512 << 10},
	// These types are whole machines. Their names do not contain their size.
	"a1.metal": {16, 32 << 10}, "c5.metal": {96, 192 << 10}, "c5d.metal": {96, 192 << 10}, "c5n.metal": {72, 192 << 10},
	"c6a.metal": {192, 384 << 10}, "c6g.metal": {64, 128 << 10},
	"c6gd.metal": {64, 128 << 10}, "c6i.metal": {128, 256 << 10}, "c6id.metal": {128, 256 << 10},
	"c6in.metal": {128, 256 << 10}, "c7g.metal": {64, 128 << 10}, "c7gd.metal": {64, 128 << 10},
	"g4dn.metal": {96, 384 << 10}, "g5g.metal": {64, 128 << 10}, "i3.metal": {72, 512 << 10},
	"i3en.metal": {96, 768 << 10}, "i4i.metal": {128, 1024 << 10},
	"m5.metal": {96, 384 << 10}, "m5d.metal": {96, 384 << 10}, "m5dn.metal": {96, 384 << 10},
	"m5n.metal": {96, 384 << 10}, "m5zn.metal": {48, 192 << 10},
	"m6a.metal": {192, 768 << 10}, "m6g.metal": {64, 256 << 10}, "m6gd.metal": {64, 256 << 10},
	"m6i.metal": {128, 512 << 10}, "m6id.metal": {128, 512 << 10},
	"m6idn.metal": {128, 512 << 10}, "m6in.metal": {128, 512 << 10}, "m7g.metal": {64, 256 << 10},
	"m7gd.metal": {64, 256 << 10},
	"r5.metal":   {96, 768 << 10}, "r5b.metal": {96, 768 << 10}, "r5d.metal": {96, 768 << 10},
	"r5dn.metal": {96, 768 << 10}, "r5n.metal": {96, 768 << 10},
	"r6a.metal": {192, 1536 << 10}, "r6g.metal": {64, 512 << 10}, "r6gd.metal": {64, 512 << 10},
	"r6i.metal": {128, 1024 << 10}, "r6id.metal": {128, 1024 << 10},
	"r6idn.metal": {128, 1024 << 10}, "r6in.metal": {128, 1024 << 10}, "r7g.metal": {64, 512 << 10},
	"r7gd.metal": {64, 512 << 10},
	"x2gd.metal": {64, 1024 << 10}, "x2idn.metal": {128, 2048 << 10}, "x2iedn.metal": {128, 4096 << 10},
	"x2iezn.metal": {48, 1536 << 10}, "z1d.metal": {48, 384 << 10},
}

// burstable holds the sizes of t3, t3a and t4g.
var burstable = map[string]machine{"nano": {2, 512}, "micro": {2, 1 << 10}, "small": {2, 2 << 10},
	"medium": {2, 4 << 10}, "large": {2, 8 << 10}, "xlarge": {4, 16 << 10},
	"2xlarge": {8, 32 << 10}}

func aws(instanceType string) (machine, bool) {
	family, size, ok := strings.Cut(instanceType, ".")
	if !ok {
		return machine{}, false
	}
	if m, ok := exceptions[instanceType]; ok {
		return m, true
	}
	if family == "t3" || family == "t3a" || family == "t4g" {
		m, ok := burstable[size]
		return m, ok
	}
	ratio, ok := ratios[family]
	if !ok {
		return machine{}, false
	}
	cpus, ok := vcpus(family, size)
	return machine{cpus, cpus * ratio}, ok
}

func vcpus(family, size string) (int64, bool) {
	switch size {
	case "medium":
		return 1, slices.Contains(medium, family)
	case "large":
		return 2, true
	case "xlarge":
		return 4, true
	}
	// "metal-24xl" is a whole machine with the size of 24xlarge.
	text, ok := strings.CutSuffix(size, "xlarge")
	if metal, whole := strings.CutPrefix(size, "metal-"); whole {
		text, ok = strings.CutSuffix(metal, "xl")
	}
	n, valid := number(text)
	return 4 * n, ok && valid && slices.Contains(xlarges, n)
}

package capacity

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCapacityOfInstanceTypes(t *testing.T) {
	for instanceType, want := range map[string]string{
		// Sizes of AWS types, copied from tables on AWS's pages.
		"m5.large": "2 8Gi", "m5.24xlarge": "96 384Gi", "m6i.32xlarge": "128 512Gi", "m6a.48xlarge": "192 768Gi",
		"m7gd.medium": "1 4Gi", "m7i-flex.2xlarge": "8 32Gi", "m8g.48xlarge": "192 768Gi",
		"c5.9xlarge": "36 72Gi", "c5.metal": "96 192Gi", "c6in.4xlarge": "16 32Gi", "c7g.medium": "1 2Gi",
		"c5n.large": "2 5376Mi", "c5n.18xlarge": "72 192Gi", "c4.8xlarge": "36 60Gi",
		"r8g.24xlarge": "96 768Gi", "r8g.metal-24xl": "96 768Gi", "r8i.96xlarge": "384 3Ti", "r4.large": "2 15616Mi",
		"r6g.medium": "1 8Gi", "r7iz.metal-16xl": "64 512Gi",
		"x2gd.medium": "1 16Gi", "x2gd.metal": "64 1Ti", "x1.32xlarge": "128 1952Gi", "x1e.xlarge": "4 122Gi",
		"x2iedn.32xlarge": "128 4Ti", "z1d.3xlarge": "12 96Gi",
		"t2.nano": "1 512Mi", "t3.nano": "2 512Mi", "t3a.small": "2 2Gi", "t4g.medium": "2 4Gi", "t3.2xlarge": "8 32Gi",
		"a1.4xlarge": "16 32Gi",
		"g4dn.metal": "96 384Gi", "g5.48xlarge": "192 768Gi", "p4d.24xlarge": "96 1152Gi", "i3.16xlarge": "64 488Gi",
		"i3.metal": "72 512Gi", "is4gen.medium": "1 6Gi", "d2.8xlarge": "36 244Gi",
		// Sizes of GCP types, copied from tables on Google's pages.
		"n1-standard-1": "1 3840Mi", "n1-highmem-96": "96 624Gi", "n1-highcpu-2": "2 1843Mi",
		"n1-highcpu-8": "8 7373Mi", "n2-standard-80": "80 320Gi", "n2-highmem-128": "128 864Gi",
		"n2d-highcpu-224": "224 224Gi", "e2-micro": "2 1Gi", "e2-small": "2 2Gi", "e2-medium": "2 4Gi",
		"e2-standard-32": "32 128Gi", "c2-standard-60": "60 240Gi", "c3-standard-22": "22 88Gi",
		"c4-standard-2": "2 7Gi", "c4-standard-4": "4 15Gi", "c4-highmem-2": "2 15Gi", "c4-highmem-8": "8 62Gi",
		"c4-highmem-192": "192 1488Gi", "c4a-standard-1": "1 4Gi", "t2a-standard-48": "48 192Gi",
		"t2d-standard-60": "60 240Gi", "m1-ultramem-40": "40 961Gi", "m1-megamem-96": "96 1468006Mi",
		"a2-highgpu-1g": "12 85Gi", "g2-standard-12": "12 48Gi", "f1-micro": "1 614Mi",
		"custom-6-3072": "6 3Gi", "custom-6-61440-ext": "6 60Gi", "n2-custom-4-5120": "4 5Gi",
		"e2-custom-2-1024": "2 1Gi",
		// The result for an unknown type is empty, and not a guess.
		"": "", ".": "", "-": "", "m5": "", "m5.": "", ".large": "", "m5.medium": "", "m5.5xlarge": "",
		"m5.0xlarge": "", "m5.02xlarge": "", "m5.1xlarge": "", "m5.metal-": "", "m5.metal-xl": "",
		"m5.-2xlarge": "", "m5.2Xlarge": "", "M5.large": "", "m5.large ": "", "m99.large": "", "q5.large": "",
		"m8g.metal": "", "u-6tb1.metal": "", "mac2.metal": "", "t3.metal": "", "t5.large": "",
		"m5.99999999999999999999xlarge": "", "n2-standard-3": "", "n2-standard-": "",
		"n2-standard-99999999999999999999": "", "n9-standard-2": "", "n2-2": "", "c3-standard-4-lssd": "",
		"custom-0-1024": "", "custom-2": "", "custom-2-": "", "custom-2-1000": "", "custom-2-1024-1024": "",
		"custom-2--ext": "", "custom-999-1024": "", "z3-custom-2-1024": "", "n2-custom-2-1024-ex": "",
		"n2-highmem-129": "", "standard": "", "cx22": "", "large": "", "medium": "",
	} {
		got := ""
		if list := Of(instanceType); list != nil {
			got = list.Cpu().String() + " " + list.Memory().String()
			if len(list) != 2 {
				t.Errorf("%s: %v", instanceType, list)
			}
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", instanceType, got, want)
		}
	}
}

// TestTables checks three properties of the tables. Every type in exceptions has another size than its family and name
// imply. Every family in the list medium has an entry in ratios. No name of a GCP type contains a dot.
func TestTables(t *testing.T) {
	for instanceType, m := range exceptions {
		family, size, _ := strings.Cut(instanceType, ".")
		cpus, regular := vcpus(family, size)
		if ratio, ok := ratios[family]; ok && regular && m.cpus == cpus && m.mib == cpus*ratio {
			t.Errorf("%s follows its family: it is no exception", instanceType)
		}
	}
	for _, family := range medium {
		if ratios[family] == 0 {
			t.Errorf("%s has a size of one vCPU but no ratio", family)
		}
	}
	for instanceType := range fixed {
		if strings.Contains(instanceType, ".") {
			t.Errorf("%s is no name of GCP", instanceType)
		}
	}
}

// FuzzOf checks that the result for any name is nil or a plausible size.
func FuzzOf(f *testing.F) {
	for _, seed := range []string{"m5.large", "c6in.4xlarge", "r8g.metal-24xl", "x2gd.medium", "t3.nano",
		"c5n.18xlarge", "n1-highcpu-2", "n2-custom-4-5120", "custom-6-61440-ext", "e2-micro",
		"m1-ultramem-40", "m5.99999999999999999999xlarge", "custom-999999-9999999", "-custom-", "custom--", "..",
		"m5.metal-xl", "\x00.large", "n2-standard-9999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, instanceType string) {
		list := Of(instanceType)
		if list == nil {
			return
		}
		cpu, memory := list[corev1.ResourceCPU], list[corev1.ResourceMemory]
		if c, m := cpu.Value(), memory.Value(); c < 1 || c > 512 || m < 256<<20 || m > 32<<40 {
			t.Errorf("%q: %v", instanceType, list)
		}
		if strings.ToLower(strings.TrimSpace(instanceType)) != instanceType {
			t.Errorf("%q is read as if it were written otherwise", instanceType)
		}
	})
}

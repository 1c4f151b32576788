package ec2

// Names of architectures in EC2.
const (
	archAMD64 = "x86_64"
	archARM64 = "arm64"
)

// instanceType is one row of the table of instance types.
// https://docs.aws.amazon.com/ec2/latest/instancetypes/
type instanceType struct {
	name         string // such as m7g.large
	family       string // such as m7g
	arch         string
	manufacturer string
	clock        float64 // GHz, sustained
	vcpus        int
	threads      int // threads per core
	memory       int // MiB
	interfaces   int // maximum number of network interfaces
	addresses    int // maximum IPv4 (and IPv6) addresses per interface
	burstable    bool
	hypervisor   string // nitro, or xen for older types
	network      string // network performance, in AWS's words
}

// size is one of a family's sizes.
type size struct {
	name                              string
	vcpus, mib, interfaces, addresses int
}

// burstableSizes are the sizes of the T families.
var burstableSizes = []size{
	{"nano", 2, 512, 2, 2}, {"micro", 2, 1024, 2, 2}, {"small", 2, 2048, 3, 4}, {"medium", 2, 4096, 3, 6},
	{"large", 2, 8192, 3, 12}, {"xlarge", 4, 16384, 4, 15}, {"2xlarge", 8, 32768, 4, 15},
}

// steadySizes are the sizes of the M, C and R families since the fifth generation. The family determines the memory of
// a size.
var steadySizes = []size{
	{"medium", 1, 0, 2, 4}, {"large", 2, 0, 3, 10}, {"xlarge", 4, 0, 4, 15}, {"2xlarge", 8, 0, 4, 15},
	{"4xlarge", 16, 0, 8, 30},
	{"8xlarge", 32, 0, 8, 30}, {"12xlarge", 48, 0, 8, 30}, {"16xlarge", 64, 0, 15, 50}, {"24xlarge", 96, 0, 15, 50},
}

// family is an instance family. The table of instance types has a type for each size of a family.
type family struct {
	name, manufacturer string
	clock              float64
	perVCPU            int // MiB of memory; 0: a burstable family, with memory per size
}

var families = []family{
	{"t2", "Intel", 2.4, 0}, {"t3", "Intel", 2.5, 0}, {"t3a", "AMD", 2.2, 0}, {"t4g", "AWS", 2.5, 0},
	{"m5", "Intel", 3.1, 4096}, {"m5a", "AMD", 2.5, 4096}, {"m6g", "AWS", 2.5, 4096}, {"m6i", "Intel", 3.5, 4096},
	{"m6a", "AMD", 3.6, 4096},
	{"m7g", "AWS", 2.6, 4096}, {"m7i", "Intel", 3.2, 4096}, {"m7a", "AMD", 3.7, 4096}, {"m8g", "AWS", 2.8, 4096},
	{"c5", "Intel", 3.4, 2048}, {"c6g", "AWS", 2.5, 2048}, {"c6i", "Intel", 3.5, 2048}, {"c6a", "AMD", 3.6, 2048},
	{"c7g", "AWS", 2.6, 2048}, {"c7i", "Intel", 3.2, 2048}, {"c7a", "AMD", 3.7, 2048}, {"c8g", "AWS", 2.8, 2048},
	{"r5", "Intel", 3.1, 8192}, {"r6g", "AWS", 2.5, 8192}, {"r6i", "Intel", 3.5, 8192}, {"r6a", "AMD", 3.6, 8192},
	{"r7g", "AWS", 2.6, 8192}, {"r7i", "Intel", 3.2, 8192}, {"r7a", "AMD", 3.7, 8192}, {"r8g", "AWS", 2.8, 8192},
}

// instanceTypes returns the table of all types by name.
func instanceTypes() map[string]*instanceType {
	table := map[string]*instanceType{}
	for _, f := range families {
		sizes := steadySizes
		if f.perVCPU == 0 {
			sizes = burstableSizes
		}
		for _, z := range sizes {
			t := &instanceType{
				name: f.name + "." + z.name, family: f.name, arch: archAMD64, manufacturer: f.manufacturer,
				clock: f.clock, vcpus: z.vcpus, threads: 2,
				memory: z.mib, interfaces: z.interfaces, addresses: z.addresses, burstable: f.perVCPU == 0,
				hypervisor: "nitro", network: "Up to 12.5 Gigabit",
			}
			if f.perVCPU > 0 {
				t.memory = z.vcpus * f.perVCPU
			}
			switch {
			case f.manufacturer == "AWS":
				t.arch, t.threads = archARM64, 1
			case f.name == "m7a" || f.name == "c7a" || f.name == "r7a":
				t.threads = 1
			case z.name == "medium" && f.perVCPU > 0:
				continue // Only Graviton and the seventh AMD generation have a size with one virtual CPU.
			}
			if t.burstable {
				t.network = "Up to 5 Gigabit"
			}
			if f.name == "t2" {
				t.hypervisor, t.network, t.threads = "xen", "Low to Moderate", 1
				if z.vcpus == 2 && z.mib < 4096 {
					t.vcpus = 1
				}
			}
			table[t.name] = t
		}
	}
	return table
}

// hibernates reports whether instances of the type can hibernate. Linux instances need less than 150 GiB of memory.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/hibernating-prerequisites.html
func (t *instanceType) hibernates() bool { return t.manufacturer == "Intel" && t.memory < 150<<10 }

// cores returns the physical cores of the type.
func (t *instanceType) cores() int { return max(1, t.vcpus/t.threads) }

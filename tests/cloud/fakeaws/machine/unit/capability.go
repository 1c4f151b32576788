package unit

import (
	"fmt"
	"strings"
)

// capabilities are the names of the capabilities, in the kernel's order. capabilities(7).
var capabilities = strings.Fields(
	`CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_KILL CAP_SETGID CAP_SETUID CAP_SETPCAP
	CAP_LINUX_IMMUTABLE CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_ADMIN CAP_NET_RAW CAP_IPC_LOCK CAP_IPC_OWNER
	CAP_SYS_MODULE CAP_SYS_RAWIO CAP_SYS_CHROOT CAP_SYS_PTRACE CAP_SYS_PACCT CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_NICE
	CAP_SYS_RESOURCE CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_MKNOD CAP_LEASE CAP_AUDIT_WRITE CAP_AUDIT_CONTROL CAP_SETFCAP
	CAP_MAC_OVERRIDE CAP_MAC_ADMIN CAP_SYSLOG CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_AUDIT_READ CAP_PERFMON CAP_BPF
	CAP_CHECKPOINT_RESTORE`)

// AllCapabilities has the bit of every capability set.
var AllCapabilities = uint64(1)<<len(capabilities) - 1

// Capabilities parses names separated by blanks into bits. A "~" before them sets inverted, which means all other
// capabilities.
func Capabilities(value string) (bits uint64, inverted bool, err error) {
	value, inverted = strings.CutPrefix(value, "~")
	for _, name := range strings.Fields(value) {
		found := false
		for i, c := range capabilities {
			if strings.EqualFold(c, name) {
				bits |= 1 << i
				found = true
			}
		}
		if !found {
			return 0, false, fmt.Errorf("%q is no capability", name)
		}
	}
	return bits, inverted, nil
}

// bounding parses CapabilityBoundingSet=. A line adds to the capabilities that earlier lines allow, or removes from
// them. An empty value allows none. systemd.exec(5).
func bounding(l *loader, _, value string) error {
	bits, inverted, err := Capabilities(value)
	if err != nil {
		return err
	}
	old := l.service.Bounding
	switch {
	case value == "", old == nil && !inverted:
	case inverted && old == nil:
		bits = AllCapabilities &^ bits
	case inverted:
		bits = *old &^ bits
	default:
		bits |= *old
	}
	l.service.Bounding = &bits
	return nil
}

func ambient(l *loader, _, value string) error {
	bits, inverted, err := Capabilities(value)
	switch {
	case err != nil:
		return err
	case inverted:
		l.service.Ambient &^= bits
	case value == "":
		l.service.Ambient = 0
	default:
		l.service.Ambient |= bits
	}
	return nil
}

package machine

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/bpf"
)

// These are the return values of a program that tc(8) runs as a classifier with direct actions. See tc-bpf(8).
const (
	pass = 0
	drop = 2
)

// Offsets in an Ethernet frame.
const (
	typeOffset    = 12
	source4Offset = 26
	source6Offset = 22

	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
)

// sourceFilter returns a program for tc-bpf(8). The program drops an IP packet if its source is none of the addresses.
// It passes the packets of ARP, and IPv6 packets from link-local addresses, because machines find their neighbors with
// them.
func sourceFilter(addresses []netip.Prefix) (string, error) {
	var four, six []bpf.Instruction
	for _, a := range addresses {
		bytes := a.Addr().AsSlice()
		if a.Addr().Is4() {
			four = append(four, passIf(source4Offset, bytes)...)
		} else {
			six = append(six, passIf(source6Offset, bytes)...)
		}
	}
	linkLocal := netip.MustParseAddr("fe80::").AsSlice()
	six = append(six, passIf(source6Offset, linkLocal[:8])...)
	four, six = append(four, bpf.RetConstant{Val: drop}), append(six, bpf.RetConstant{Val: drop})
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: typeOffset, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: typeIPv4, SkipTrue: uint8(len(four))},
	}
	program = append(program, four...)
	program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: typeIPv6, SkipTrue: uint8(len(six))})
	program = append(program, six...)
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: pass}))
	if err != nil {
		return "", err
	}
	text := []string{fmt.Sprint(len(raw))}
	for _, i := range raw {
		text = append(text, fmt.Sprintf("%d %d %d %d", i.Op, i.Jt, i.Jf, i.K))
	}
	return strings.Join(text, ","), nil
}

// passIf returns instructions that pass a packet with the given bytes at the offset. The number of bytes is a multiple
// of four.
func passIf(offset uint32, want []byte) (program []bpf.Instruction) {
	for left := len(want) / 4; left > 0; left-- {
		program = append(program, bpf.LoadAbsolute{Off: offset, Size: 4}, bpf.JumpIf{Cond: bpf.JumpNotEqual,
			Val: binary.BigEndian.Uint32(want), SkipTrue: uint8(2*left - 1)})
		offset, want = offset+4, want[4:]
	}
	return append(program, bpf.RetConstant{Val: pass})
}

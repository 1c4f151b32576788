// Package pasted reads text that people carry from one system to another, such as certificates, keys, nonces, tokens
// and environment variables.
package pasted

import "strings"

// byteOrderMark is the mark that some editors write at the start of a file.
const byteOrderMark = "\ufeff"

// Clean returns text without what editors, shells and YAML add or remove on the way: byte order marks and white space
// at its ends, white space at the ends of its lines, and line ends other than "\n".
func Clean[T ~string | ~[]byte](text T) T {
	all := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	for {
		trimmed := strings.Trim(strings.TrimSpace(all), byteOrderMark)
		if trimmed == all {
			break
		}
		all = trimmed
	}
	lines := strings.Split(all, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t")
	}
	return T(strings.Join(lines, "\n"))
}

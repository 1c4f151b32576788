package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Env renders KEY=value lines, sorted by key, from templates of the values. A POSIX shell that reads the file with "."
// and systemd's EnvironmentFile= get exactly the same values. Env returns an error for a value that one of the two
// cannot read. Such values contain a NUL byte, invalid UTF-8, Unicode noncharacters or a byte order mark.
func Env(name string, vars map[string]string, d Data) ([]byte, error) {
	b := newBudget()
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(vars)) {
		if err := ValidateEnvName(key); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		at := name + "." + key
		value, err := textWith(at, vars[key], d, b)
		if err != nil {
			return nil, err
		}
		quoted, err := quoteEnv(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if out.Len()+len(key)+len(quoted) > MaxOutput {
			return nil, fmt.Errorf("%s: the file is longer than %d bytes: %w", name, MaxOutput, ErrTooLarge)
		}
		out.WriteString(key + "=" + quoted + "\n")
	}
	return []byte(out.String()), nil
}

// ValidateEnvName checks the name of an environment variable: a name of POSIX.1, section 3.216, which systemd accepts
// too.
func ValidateEnvName(s string) error {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && (i == 0 || c < '0' || c > '9') {
			return fmt.Errorf("%q is not the name of an environment variable", s[:min(len(s), 64)])
		}
	}
	if s == "" || len(s) > 256 {
		return fmt.Errorf("the name of an environment variable has 1 to 256 characters, not %d", len(s))
	}
	return nil
}

// quoteEnv quotes a value for a POSIX shell and for systemd. It uses double quotes, because both programs have the same
// rules inside them: a backslash before ", \, ` or $ makes that character literal, and line breaks are literal. See
// POSIX Shell Command Language, section 2.2.3, and systemd.exec(5), EnvironmentFile=. It does not use single quotes,
// because in systemd they cannot enclose a single quote. A value that needs no quotes gets none, so that simpler
// parsers can read it. A value with ~ needs quotes, because a shell expands ~.
func quoteEnv(s string) (string, error) {
	if !utf8.ValidString(s) {
		return "", errors.New("the value is not valid UTF-8")
	}
	harmless := s != ""
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == 0:
			return "", errors.New("the value has a NUL character")
		case r == 0xfeff, r >= 0xfdd0 && r <= 0xfdef, r&0xfffe == 0xfffe:
			return "", fmt.Errorf("the value has the character %U, which systemd refuses", r)
		case strings.ContainsRune("\"\\`$", r):
			out.WriteByte('\\')
		}
		out.WriteRune(r)
		harmless = harmless && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("_./:@%+,-=", r))
	}
	if harmless {
		return s, nil
	}
	out.WriteByte('"')
	return out.String(), nil
}

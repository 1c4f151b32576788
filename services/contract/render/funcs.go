package render

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"
)

// budget limits the output of one render call, and the results of the functions in its templates. Each function of
// text/template that makes a text is replaced by one that counts its result against the budget. The other functions
// (len, index, slice, eq, and, …) make no new text.
type budget struct{ output, work int }

func newBudget() *budget { return &budget{output: MaxOutput, work: maxWork} }

// spend counts n bytes of work. Call it before the bytes are made.
func (b *budget) spend(n int) error {
	if b.work -= n; b.work < 0 {
		return fmt.Errorf("functions make more than %d bytes: %w", maxWork, ErrTooLarge)
	}
	return nil
}

// escapeFactor is the maximum ratio between the length of an escaped text and the length of the original.
const escapeFactor = 6

func (b *budget) funcs() template.FuncMap {
	counted := func(factor int, f func(...any) string) func(...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := b.scalars(args, factor); err != nil {
				return "", err
			}
			return f(args...), nil
		}
	}
	return template.FuncMap{
		"print": counted(1, fmt.Sprint), "println": counted(1, fmt.Sprintln), "printf": b.printf,
		"html": counted(escapeFactor, template.HTMLEscaper), "js": counted(escapeFactor, template.JSEscaper),
		"urlquery": counted(escapeFactor, template.URLQueryEscaper),
		"base64":   b.base64, "indent": b.indent, "json": b.json, "quote": b.quote,
	}
}

// scalars refuses arguments that a function must not print: anything but texts, numbers and truth values. It also
// charges their size to the budget.
func (b *budget) scalars(args []any, factor int) error {
	for _, arg := range args {
		size := 32
		switch arg := arg.(type) {
		case string:
			size = len(arg)*factor + 1
		case bool, int, float64, complex128, rune, byte, nil:
		default:
			return fmt.Errorf("a %T cannot be printed; use json", arg)
		}
		if err := b.spend(size); err != nil {
			return err
		}
	}
	return nil
}

func (b *budget) printf(format string, args ...any) (string, error) {
	longest := 0
	for _, arg := range args {
		if s, ok := arg.(string); ok {
			longest = max(longest, len(s))
		}
	}
	if err := b.scalars(args, 0); err != nil {
		return "", err
	}
	// A verb such as %[1]s can print any argument. So for each verb, spend counts the length of the longest argument
	// after escaping, plus 2000 bytes. 2000 bytes are enough for a number with the greatest width and precision.
	if err := b.spend(len(format) + strings.Count(format, "%")*(longest*escapeFactor+2000)); err != nil {
		return "", err
	}
	digits, inVerb := 0, false
	for i := range len(format) {
		switch c := format[i]; {
		case c == '%':
			digits, inVerb = 0, !inVerb
		case !inVerb:
		case c >= '0' && c <= '9':
			if digits++; digits > 3 {
				return "", fmt.Errorf("a width or precision over 999 is not available")
			}
		case c == '*':
			return "", fmt.Errorf("a width or precision of * is not available")
		case strings.IndexByte("+-# .[]", c) >= 0:
			digits = 0
		default:
			inVerb = false
		}
	}
	return fmt.Sprintf(format, args...), nil
}

// base64 is standard base64 with padding.
func (b *budget) base64(s string) (string, error) {
	if err := b.spend(base64.StdEncoding.EncodedLen(len(s))); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString([]byte(s)), nil
}

// indent puts n spaces before every line that is not empty.
func (b *budget) indent(n int, s string) (string, error) {
	if n < 0 || n > 100 {
		return "", fmt.Errorf("indent by 0 to 100 spaces, not %d", n)
	}
	if err := b.spend(len(s) + n*(1+strings.Count(s, "\n"))); err != nil {
		return "", err
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = strings.Repeat(" ", n) + line
		}
	}
	return strings.Join(lines, "\n"), nil
}

// json writes any value as JSON, on one line.
func (b *budget) json(v any) (string, error) {
	out, err := encodeJSON(v, "")
	if err != nil {
		return "", err
	}
	if err := b.spend(len(out)); err != nil {
		return "", err
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// quote quotes a text as one word of a POSIX shell.
func (b *budget) quote(s string) (string, error) {
	if err := b.spend(len(s) + 4*strings.Count(s, "'") + 2); err != nil {
		return "", err
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

func encodeJSON(v any, indent string) ([]byte, error) {
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

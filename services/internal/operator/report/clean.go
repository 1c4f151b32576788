package report

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/nstance-kit/nstance/services/internal/operator/scope"
)

// secrets matches PEM keys, JSON web tokens, and values with names such as "password".
var secrets = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
	`|eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){1,2}` +
	`|(?i:\b(token|secret|password|passwd|authorization|api[_-]?key)["']?\s*[=:]\s*["']?(bearer\s+|basic\s+)?)[^\s"',;&]+`)

// sanitize turns a message into one line of limited length without secrets. The servers send no secrets, but the errors
// of providers may contain some.
func sanitize(message string) string {
	message = secrets.ReplaceAllString(message, "[removed]")
	message = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(message, ""), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	return scope.Truncate(message)
}

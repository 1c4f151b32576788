package report

import (
	"regexp"
	"strings"
	"unicode"
)

// maxNote is what an event's note may hold (1024 bytes, Kubernetes API), less the words around it.
const maxNote = 900

// secrets look like keys in PEM form, JSON web tokens, and values that are called what secrets are called.
var secrets = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
	`|eyJ[A-Za-z0-9_-]{8,}(\.[A-Za-z0-9_-]*){1,2}` +
	`|(?i:\b(token|secret|password|passwd|authorization|api[_-]?key)["']?\s*[=:]\s*["']?(bearer\s+|basic\s+)?)[^\s"',;&]+`)

// clean makes a message fit for an event: one line of limited length without anything that looks like a secret. The
// servers send none; this is for what providers put into their errors.
func clean(message string) string {
	message = secrets.ReplaceAllString(message, "[removed]")
	message = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(message, ""), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if len(message) > maxNote {
		message = strings.ToValidUTF8(message[:maxNote], "") + " ..."
	}
	return message
}

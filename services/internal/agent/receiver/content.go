package receiver

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

// The kinds of files, as in the shard configuration.
const (
	kindCertificate = "certificate"
	kindSecret      = "secret"
	kindStorage     = "storage"
	kindEnv         = "env"
	kindJSON        = "json"
	kindString      = "string"
)

// checkContent checks that the content of a file fits its kind. Files of the kinds secret, storage and string may have
// any content, unless the file's name has an extension that implies a format. Errors do not quote the content, because
// it may be secret.
func checkContent(name, kind string, content []byte) error {
	switch kind {
	case kindCertificate:
		return checkCertificates(content)
	case kindEnv:
		return checkEnv(content)
	case kindJSON:
		return checkJSON(content)
	case kindSecret, kindStorage, kindString:
	default:
		return fmt.Errorf("its kind is unknown (%q); a newer agent may know it", folder.Clip(kind, 40))
	}
	switch path.Ext(name) {
	case ".crt":
		return checkCertificates(content)
	case ".env":
		return checkEnv(content)
	case ".json":
		return checkJSON(content)
	}
	return nil
}

// checkCertificates accepts one or more PEM certificates, separated by nothing but white space.
func checkCertificates(content []byte) error {
	count := 0
	for rest := bytes.TrimSpace(content); len(rest) > 0; rest = bytes.TrimSpace(rest) {
		count++
		if !bytes.HasPrefix(rest, []byte("-----BEGIN CERTIFICATE-----")) {
			return fmt.Errorf("block %d is not a PEM certificate", count)
		}
		block, after := pem.Decode(rest)
		// pem.Decode skips an unreadable block and returns the next one.
		if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 ||
			bytes.Count(rest[:len(rest)-len(after)], []byte("-----BEGIN")) != 1 {
			return fmt.Errorf("block %d is not a PEM certificate", count)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("block %d is not an X.509 certificate", count)
		}
		rest = after
	}
	if count == 0 {
		return errors.New("there is no certificate in it")
	}
	return nil
}

// validity returns the validity period of the first certificate in a PEM text.
func validity(content []byte) (notBefore, notAfter time.Time, ok bool) {
	block, _ := pem.Decode(content)
	if block == nil || block.Type != "CERTIFICATE" {
		return time.Time{}, time.Time{}, false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}, time.Time{}, false
	}
	return cert.NotBefore, cert.NotAfter, true
}

// checkJSON accepts exactly one JSON value.
func checkJSON(content []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(content))
	var value json.RawMessage
	if err := decoder.Decode(&value); err != nil {
		return fmt.Errorf("it is not JSON: %w", position(err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("it is not JSON: something follows the first value")
	}
	return nil
}

// position describes a JSON error by its kind and position. It leaves out the part of the input that the error quotes.
func position(err error) error {
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return fmt.Errorf("syntax error at byte %d", syntax.Offset)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("it ends too early")
	}
	return errors.New("syntax error")
}

// checkEnv accepts what systemd's EnvironmentFile= (systemd.exec(5)) and shell assignments have in common: empty lines,
// comments, and NAME=value. The value may have quoted parts, and a quoted part may span several lines.
func checkEnv(content []byte) error {
	if bytes.IndexByte(content, 0) >= 0 {
		return errors.New("it contains a zero byte")
	}
	line := 1
	for rest := content; len(rest) > 0; {
		if end := bytes.IndexByte(rest, '\n'); blankOrComment(firstLine(rest)) {
			if end < 0 {
				return nil
			}
			rest, line = rest[end+1:], line+1
			continue
		}
		length, ok := envName(rest)
		if !ok {
			return fmt.Errorf("line %d: want NAME=value", line)
		}
		after, ok := envValue(rest[length+1:])
		if !ok {
			return fmt.Errorf("line %d: a quote is not closed", line)
		}
		line += bytes.Count(rest[:len(rest)-len(after)], []byte("\n"))
		rest = after
	}
	return nil
}

func firstLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line
}

func blankOrComment(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#' || line[0] == ';'
}

// envName returns the length of the variable's name before "=".
func envName(text []byte) (int, bool) {
	for i, c := range text {
		switch {
		case c == '=':
			return i, i > 0
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		case c >= '0' && c <= '9' && i > 0:
		default:
			return 0, false
		}
	}
	return 0, false
}

// envValue skips the value at the start of text and the line break that ends the value. It returns the remaining text.
// Within single quotes every character is literal. Elsewhere a backslash escapes the next character.
func envValue(text []byte) ([]byte, bool) {
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == '\n':
			return text[i+1:], true
		}
	}
	return nil, quote == 0
}

package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// MaxSize is the largest document that is written or read, in bytes.
const MaxSize = 256 << 10

// ErrNewer means that a document has a schema version that this program does not know: it was written by a newer one.
var ErrNewer = errors.New("written by a newer version of nstance")

// document is a document of this package. Validate returns an error that lists everything wrong with it. kind returns
// its name for messages, and the newest version of its schema.
type document interface {
	Validate() error
	kind() (what string, newest int)
}

// Decode parses a document strictly and checks it. The error is [ErrNewer] if a newer program wrote the document. With
// an error, Decode returns the zero document.
func Decode[D document](data []byte) (D, error) {
	var d, none D
	what, newest := d.kind()
	if err := parse(what, data, newest, &d); err != nil {
		return none, err
	}
	if err := d.Validate(); err != nil {
		return none, err
	}
	return d, nil
}

// parse reads one JSON document into v. It refuses a document that is too large, has an unknown, misspelt or repeated
// field, or is followed by other data. parse checks the schema version first, so that the error for a newer document
// names the version instead of an unknown field.
func parse(what string, data []byte, newest int, v any) error {
	if len(data) > MaxSize {
		return fmt.Errorf("decode %s: %d bytes, at most %d are allowed", what, len(data), MaxSize)
	}
	var head struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	switch {
	case head.Schema == nil:
		return fmt.Errorf("decode %s: no schema version", what)
	case *head.Schema > newest:
		return fmt.Errorf("decode %s: schema version %d, the newest known is %d: %w", what, *head.Schema, newest,
			ErrNewer)
	case *head.Schema < 1:
		return fmt.Errorf("decode %s: schema version %d", what, *head.Schema)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := checkNames(dec, 0); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	dec = json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("decode %s: %w", what, err)
	}
	return nil
}

// checkNames walks one value and refuses what encoding/json accepts: repeated names, and capital letters in the field
// names of the top level.
func checkNames(dec *json.Decoder, depth int) error {
	token, err := dec.Token()
	if err != nil {
		return err
	}
	open, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for dec.More() {
		if open == '{' {
			token, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string) // the decoder accepts nothing else here
			if seen[name] {
				return fmt.Errorf("field %q is there twice", name)
			}
			if depth == 0 && name != strings.ToLower(name) {
				return fmt.Errorf("unknown field %q: names are in lower case", name)
			}
			seen[name] = true
		}
		if err := checkNames(dec, depth+1); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// encode checks one document and writes it on one line.
func encode(d document) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	what, _ := d.kind()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return nil, fmt.Errorf("encode %s: %w", what, err)
	}
	if out.Len() > MaxSize {
		return nil, fmt.Errorf("encode %s: %d bytes, at most %d are allowed", what, out.Len(), MaxSize)
	}
	return out.Bytes(), nil
}

// problems collects everything that is wrong with a document.
type problems []string

func (p *problems) check(ok bool, format string, args ...any) {
	if !ok {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

func (p *problems) add(field string, err error) {
	if err != nil {
		*p = append(*p, field+": "+err.Error())
	}
}

func (p *problems) err(what string) error {
	if len(*p) == 0 {
		return nil
	}
	return fmt.Errorf("invalid %s: %s", what, strings.Join(*p, "; "))
}

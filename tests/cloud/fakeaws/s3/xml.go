package s3

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// namespace is the XML namespace of all S3 documents.
const namespace = "http://s3.amazonaws.com/doc/2006-03-01/"

var errAnswer = errors.New("unexpected answer")

func wallClock() time.Time { return time.Now() }

func malformed() error {
	return wire.Errorf(http.StatusBadRequest, "MalformedXML",
		"The XML you provided was not well-formed or did not validate against our published schema")
}

// decode reads a document strictly: an element without a field in the structure is an error. decode marshals the
// structure again and compares the two documents' elements, regardless of order.
func decode(document []byte, into any) error {
	if err := xml.Unmarshal(document, into); err != nil {
		return malformed()
	}
	again, err := xml.Marshal(into)
	if err != nil {
		return malformed()
	}
	found, err := elements(document)
	if err != nil {
		return malformed()
	}
	held, err := elements(again)
	if err != nil || !slices.Equal(found, held) {
		return malformed()
	}
	return nil
}

// maxDepth exceeds the depth of every S3 document.
const maxDepth = 12

// elements returns all elements of a document with their paths and texts, sorted.
func elements(document []byte) ([]string, error) {
	d := xml.NewDecoder(bytes.NewReader(document))
	var path, texts, all []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if len(path) == maxDepth || token.Name.Space != "" && token.Name.Space != namespace {
				return nil, malformed()
			}
			for _, a := range token.Attr {
				if a.Name.Local != "xmlns" && a.Name.Space != "xmlns" {
					return nil, malformed()
				}
			}
			path, texts = append(path, token.Name.Local), append(texts, "")
		case xml.CharData:
			if len(texts) > 0 {
				texts[len(texts)-1] += string(token)
			}
		case xml.EndElement:
			last := len(path) - 1
			all = append(all, strings.Join(path, "/")+"="+strings.TrimSpace(texts[last]))
			path, texts = path[:last], texts[:last]
		}
	}
}

// writeXML answers with a document.
func (q *request) writeXML(document any) error {
	out, err := xml.Marshal(document)
	if err != nil {
		return err
	}
	q.w.Header().Set("Content-Type", "application/xml")
	_, _ = q.w.Write(append([]byte(xml.Header), out...)) // the client may be gone and then needs no answer
	return nil
}

// checksumHeaders returns the names of headers that may contain a digest of the body.
func checksumHeaders(h http.Header) []string {
	names := []string{"Content-Md5"}
	for name := range h {
		if strings.HasPrefix(name, "X-Amz-Checksum-") {
			names = append(names, name)
		}
	}
	return names
}

package s3

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestUnchunk(t *testing.T) {
	for _, test := range []struct {
		name, body, data, sum string
		bad                   bool
	}{
		{name: "signed",
			body: "5;chunk-signature=aa\r\nhello\r\n1;chunk-signature=bb\r\n!\r\n0;chunk-signature=cc\r\n\r\n",
			data: "hello!"},
		{name: "unsigned, with a trailer", body: "3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n\r\n", data: "abc",
			sum: "NSRBwg=="},
		{name: "trailer without an empty line", body: "3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n", data: "abc",
			sum: "NSRBwg=="},
		{name: "empty", body: "0\r\n\r\n"},
		{name: "no end", body: "3\r\nabc\r\n", bad: true},
		{name: "too short", body: "4\r\nabc\r\n0\r\n\r\n", bad: true},
		{name: "too long", body: "2\r\nabc\r\n0\r\n\r\n", bad: true},
		{name: "size", body: "x\r\nabc\r\n0\r\n\r\n", bad: true},
		{name: "huge", body: "7fffffff\r\nabc\r\n0\r\n\r\n", bad: true},
		{name: "extension", body: "3;other=1\r\nabc\r\n0\r\n\r\n", bad: true},
		{name: "line ends", body: "3\nabc\n0\n\n", bad: true},
		{name: "trailer", body: "0\r\nnonsense\r\n\r\n", bad: true},
		{name: "nothing", body: "", bad: true},
	} {
		data, trailer, err := unchunk([]byte(test.body))
		if (err != nil) != test.bad || string(data) != test.data || trailer.Get("X-Amz-Checksum-Crc32") != test.sum {
			t.Errorf("%s: %q, %v, %v", test.name, data, trailer, err)
		}
	}
}

// FuzzUnchunk encodes the data of an accepted body again, as one chunk and with one chunk per byte. Decoding must give
// the same data.
func FuzzUnchunk(f *testing.F) {
	f.Add([]byte("5;chunk-signature=aa\r\nhello\r\n0;chunk-signature=cc\r\n\r\n"))
	f.Add([]byte("3\r\nabc\r\n0\r\nx-amz-checksum-crc32:NSRBwg==\r\n\r\n"))
	f.Add([]byte("2\r\n\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		data, trailer, err := unchunk(raw)
		if err != nil {
			if data != nil || trailer != nil {
				t.Errorf("%q, %v beside %v", data, trailer, err)
			}
			return
		}
		if len(data) > len(raw) {
			t.Errorf("%d bytes out of %d", len(data), len(raw))
		}
		for size := len(data); size > 0; size = min(size-1, 1) {
			var again strings.Builder
			for chunk := range slices.Chunk(data, size) {
				fmt.Fprintf(&again, "%x\r\n%s\r\n", len(chunk), chunk)
			}
			again.WriteString("0\r\n")
			for name, values := range trailer {
				for _, value := range values {
					fmt.Fprintf(&again, "%s: %s\r\n", name, value)
				}
			}
			body, trailers, err := unchunk([]byte(again.String() + "\r\n"))
			if err != nil || !bytes.Equal(body, data) || !maps.EqualFunc(trailers, trailer, slices.Equal) {
				t.Errorf("in chunks of %d: %q, %v, %v; was %q, %v", size, body, trailers, err, data, trailer)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, p := range parts() {
		if p.fresh == nil {
			continue
		}
		out, err := xml.Marshal(p.fresh())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(out)
	}
	f.Add([]byte(
		`<LifecycleConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Rule><ID>a</ID><Filter/><Status>Enabled</Status></Rule></LifecycleConfiguration>`))
	f.Fuzz(func(t *testing.T, document []byte) {
		for _, p := range parts() {
			if p.fresh == nil {
				continue
			}
			held := p.fresh()
			if decode(document, held) != nil {
				continue
			}
			encoded, err := xml.Marshal(held)
			if err != nil {
				t.Fatal(err)
			}
			if again := p.fresh(); decode(encoded, again) != nil {
				t.Errorf("%s: an accepted body is refused with its length: %s", p.name, encoded)
			}
		}
	})
}

func TestDecodeIsStrict(t *testing.T) {
	const rule = `<Rule><ApplyServerSideEncryptionByDefault><SSEAlgorithm>AES256</SSEAlgorithm>%</ApplyServerSideEncryptionByDefault></Rule>`
	for inner, ok := range map[string]bool{"": true, "<KMSMasterKeyID>k</KMSMasterKeyID>": true, "<Other/>": false,
		"<SSEAlgorithm>AES256</SSEAlgorithm>": false} {
		text := `<ServerSideEncryptionConfiguration xmlns="` + namespace + `">` + strings.Replace(rule, "%", inner, 1) +
			`</ServerSideEncryptionConfiguration>`
		if err := decode([]byte(text), new(encryptionConfiguration)); (err == nil) != ok {
			t.Errorf("%q: %v", inner, err)
		}
	}
	deep := bytes.Repeat([]byte("<a>"), 1000)
	if _, err := elements(deep); err == nil {
		t.Error("a document of any depth is read")
	}
}

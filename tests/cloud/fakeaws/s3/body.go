package s3

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/wire"
)

// maxBody is the largest accepted body. A body is held in memory until its signature is verified. Only then is the
// request forwarded to the S3 server behind the fake.
const maxBody = 256 << 20

// maxLine is the longest accepted line of a chunked body: a size with a signature, or a trailer.
const maxLine = 4 << 10

// body reads the request's whole body. It joins the chunks of an "aws-chunked" body and turns the trailing headers into
// headers of the request.
func (q *request) body() ([]byte, error) {
	r := q.Request
	encoded := strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-")
	raw, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		var known *wire.Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, wire.Errorf(http.StatusBadRequest, "IncompleteBody", "The request body terminated unexpectedly")
	}
	if len(raw) > maxBody {
		return nil, wire.Errorf(http.StatusBadRequest, "EntityTooLarge",
			"Your proposed upload exceeds the maximum allowed object size")
	}
	if !encoded {
		return raw, checkSums(r.Header, raw)
	}
	decoded, trailer, err := unchunk(raw)
	if err != nil {
		return nil, wire.Errorf(http.StatusBadRequest, "IncompleteBody", "%v", err)
	}
	if want := r.Header.Get("X-Amz-Decoded-Content-Length"); want != strconv.Itoa(len(decoded)) {
		return nil, wire.Errorf(http.StatusBadRequest, "IncompleteBody",
			"You did not provide the number of bytes specified by the X-Amz-Decoded-Content-Length HTTP header")
	}
	announced := strings.ToLower(strings.ReplaceAll(r.Header.Get("X-Amz-Trailer"), " ", ""))
	for name, values := range trailer {
		lower := strings.ToLower(name)
		if lower == "x-amz-trailer-signature" {
			continue
		}
		if !strings.Contains(","+announced+",", ","+lower+",") {
			return nil, wire.Errorf(http.StatusBadRequest, "MalformedTrailerError",
				"The request contained trailing data that was not well-formed or did not conform to our published "+
					"schema.")
		}
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	return decoded, checkSums(r.Header, decoded)
}

// unchunk decodes an aws-chunked body: chunks of "SIZE[;chunk-signature=…] CRLF DATA CRLF", a chunk of size 0, trailing
// headers, and an empty line. It does not verify the chunks' signatures.
// Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html
func unchunk(raw []byte) (data []byte, trailer textproto.MIMEHeader, err error) {
	r := bufio.NewReaderSize(bytes.NewReader(raw), maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return nil, nil, errors.New("a chunk has no size")
		}
		text, ok := strings.CutSuffix(string(line), "\r\n")
		if !ok {
			return nil, nil, errors.New("a chunk's size has no end")
		}
		digits, extension, extended := strings.Cut(text, ";")
		if extended && !strings.HasPrefix(extension, "chunk-signature=") {
			return nil, nil, fmt.Errorf("a chunk says %.60q", extension)
		}
		size, err := strconv.ParseUint(digits, 16, 31)
		if err != nil {
			return nil, nil, fmt.Errorf("a chunk's size is %.60q", digits)
		}
		if size == 0 {
			break
		}
		if size > uint64(len(raw)) {
			return nil, nil, errors.New("a chunk is longer than the body")
		}
		chunk := make([]byte, size+2)
		if _, err := io.ReadFull(r, chunk); err != nil || string(chunk[size:]) != "\r\n" {
			return nil, nil, errors.New("a chunk ends too soon or too late")
		}
		data = append(data, chunk[:size]...)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		return nil, nil, err
	}
	// Clients that send trailing headers omit the empty line at the end of the body. Here every body gets exactly one
	// empty line.
	rest = append(bytes.TrimRight(rest, "\r\n"), "\r\n\r\n"...)
	if len(rest) == 4 {
		return data, nil, nil
	}
	trailers := textproto.NewReader(bufio.NewReader(bytes.NewReader(rest)))
	trailer, err = trailers.ReadMIMEHeader()
	if err != nil {
		return nil, nil, fmt.Errorf("trailing headers: %w", err)
	}
	return data, trailer, nil
}

// sums maps each header that contains a digest of the body to the hash function of the digest. CRC64NVME is missing,
// because the standard library lacks that function.
var sums = map[string]func() hash.Hash{
	"Content-Md5":           md5.New,
	"X-Amz-Checksum-Sha1":   sha1.New,
	"X-Amz-Checksum-Sha256": sha256.New,
	"X-Amz-Checksum-Crc32":  func() hash.Hash { return crc32.NewIEEE() },
	"X-Amz-Checksum-Crc32c": func() hash.Hash { return crc32.New(crc32.MakeTable(crc32.Castagnoli)) },
}

func checkSums(h http.Header, body []byte) error {
	for name, algorithm := range sums {
		checksum := h.Get(name)
		if checksum == "" {
			continue
		}
		sum := algorithm()
		sum.Write(body)
		if base64.StdEncoding.EncodeToString(sum.Sum(nil)) != checksum {
			return wire.Errorf(http.StatusBadRequest, "BadDigest",
				"The %s you specified did not match the calculated checksum.", name)
		}
	}
	return nil
}

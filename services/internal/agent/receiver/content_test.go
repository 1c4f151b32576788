package receiver

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

func certificate(t testing.TB) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(1e9, 0),
		NotAfter: time.Unix(2e9, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestCheckContent(t *testing.T) {
	cert := certificate(t)
	key := "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
	for _, test := range []struct {
		name, kind, content string
		problem             string // part of the error; empty: no error
	}{
		{"a.crt", "certificate", cert, ""},
		{"a.crt", "certificate", "\n" + cert + "\n" + cert, ""},
		{"a.crt", "certificate", "", "no certificate"},
		{"a.crt", "certificate", cert + "x", "block 2"},
		{"a.crt", "certificate", "x" + cert, "block 1"},
		{"a.crt", "certificate", cert + key, "block 2"},
		{"a.crt", "certificate", strings.Replace(cert, "MI", "M!", 1) + cert, "block 1"},
		{"a.crt", "certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "not an X.509"},
		{"a.crt", "secret", "anything", "block 1"},
		{"a.key", "secret", "\x00anything", ""},
		{"a.conf", "string", "{", ""},
		{"a.json", "json", `{"a": [1, null]}` + "\n", ""},
		{"a.json", "json", `{"a": 1} {}`, "follows"},
		{"a.json", "json", `{"a": hunter2}`, "byte 7"},
		{"a.json", "json", `{"a": "hunter2`, "too early"},
		{"a.json", "json", "", "too early"},
		{"a.json", "storage", "// comment\n{}", "syntax error"},
		{"a.env", "env", "", ""},
		{"a.env", "env", "# c\n; c\n\nA=1\nB_2=\"x\\\"y\nz\"\nC='it'\\''s'\nD=a b $c", ""},
		{"a.env", "env", "A=1\n\nexport B=2", "line 3"},
		{"a.env", "env", "A=\"x\ny\"\n1B=2", "line 3"},
		{"a.env", "env", "A", "line 1"},
		{"a.env", "env", "=x", "line 1"},
		{"a.env", "env", "A ='x'", "line 1"},
		{"a.env", "env", "A='x", "quote"},
		{"a.env", "env", "A='x\\'", ""},
		{"a.env", "env", "A=\"x\\\"", "quote"},
		{"a.env", "env", "A=\x00", "zero"},
		{"a.env", "string", "no", "line 1"},
		{"a.crt", "unheard", cert, "unknown"},
		{"a.crt", "", cert, "unknown"},
	} {
		err := checkContent(test.name, test.kind, []byte(test.content))
		switch {
		case test.problem == "" && err != nil:
			t.Errorf("%s (%s) %q: %v", test.name, test.kind, test.content, err)
		case test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)):
			t.Errorf("%s (%s) %q: %v, want %q", test.name, test.kind, test.content, err, test.problem)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("the error quotes the content: %v", err)
		}
	}
}

func FuzzCheckEnv(f *testing.F) {
	for _, text := range []string{"", "A=1\n", "A='x'\\''y'\nB=\"q\\\"\nr\"", "# c\n\nA=", "A=\\", "A=\\\nB=1", "A='",
		"export A=1", "A=1\r\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if checkEnv(text) != nil {
			return
		}
		// checkEnv accepts only text in which every quote is closed. So it must also accept the text between a comment
		// and another line.
		more := append([]byte("# comment\n"), text...)
		if n := len(text); n > 0 && text[n-1] != '\\' {
			more = append(more, "\nLAST=1"...)
		}
		if err := checkEnv(more); err != nil {
			t.Errorf("%q is accepted, %q is not: %v", text, more, err)
		}
	})
}

func FuzzCheckJSON(f *testing.F) {
	for _, text := range []string{"", "{}", "[1, 2]", "{} {}", "nul", `{"a":}`, "1e", `"\ud800"`, "\xef\xbb\xbf{}"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, want := checkJSON(text) == nil, json.Valid(text); got != want {
			t.Errorf("%q: accepted %v, valid %v", text, got, want)
		}
	})
}

func FuzzCheckCertificates(f *testing.F) {
	const sample = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	cert := certificate(f)
	for _, text := range []string{"", cert, cert + cert, sample, cert + sample, strings.ReplaceAll(cert, "\n", "\r\n"),
		cert + "-----BEGIN"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if checkCertificates(text) != nil {
			return
		}
		if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(text) {
			t.Errorf("accepted, and Go finds no certificate in %q", text)
		}
		if strings.Contains(string(text), "PRIVATE") {
			t.Errorf("accepted a private key: %q", text)
		}
	})
}

func FuzzDecodeDocuments(f *testing.F) {
	f.Add([]byte(`{"version":1,"runtime_hash":"h","files":["a.env"],"pending":["a.env"]}`))
	f.Add([]byte(
		`{"version":1,"write":{"a.env":"QT0x"},"remove":["b"],"after":{"version":1,"runtime_hash":"","files":null}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1} x`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, into := range []any{&state{}, &journal{}} {
			if decode("document", text, into) != nil {
				continue
			}
			again, err := json.Marshal(into)
			if err != nil {
				t.Fatal(err)
			}
			if err := decode("document", again, into); err != nil {
				t.Errorf("%s, which it wrote, is refused: %v", again, err)
			}
		}
	})
}

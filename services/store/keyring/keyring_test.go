package keyring_test

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

const text = "thisisatest32bytekey123456789012"

// binary is a key whose encoding differs between the base64 alphabets.
var binary = strings.Repeat("\xfb\xff", 16)

func key(t testing.TB, raw string) envelope.Key {
	t.Helper()
	k, err := envelope.NewKey([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"raw":                  {text, text},
		"raw, line":            {text + "\n", text},
		"raw, line of Windows": {text + "\r\n", text},
		"binary":               {binary, binary},
		"ends in a line break": {text[:31] + "\n", text[:31] + "\n"},
		"and has one more":     {text[:31] + "\n\n", text[:31] + "\n"},
		"standard":             {base64.StdEncoding.EncodeToString([]byte(binary)), binary},
		"standard, line":       {base64.StdEncoding.EncodeToString([]byte(binary)) + "\n", binary},
		"standard, no padding": {base64.RawStdEncoding.EncodeToString([]byte(binary)), binary},
		"URL":                  {base64.URLEncoding.EncodeToString([]byte(binary)), binary},
		"URL, no padding":      {base64.RawURLEncoding.EncodeToString([]byte(binary)), binary},
		"base64 with white space": {"\ufeff \t" + base64.StdEncoding.EncodeToString([]byte(binary)) + " \r\n\n",
			binary},
		"URL, no padding, line ": {base64.RawURLEncoding.EncodeToString([]byte(binary)) + "\r\n", binary},
	} {
		got, err := keyring.Parse([]byte(c.data))
		if err != nil || !got.Equal(key(t, c.want)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	encoded := base64.StdEncoding.EncodeToString([]byte(text))
	for name, data := range map[string]string{
		"empty":              "",
		"short":              text[:31],
		"long":               text + "xx",
		"two lines":          text + "\n\n",
		"hexadecimal":        strings.Repeat("ab", 32),
		"not base64":         strings.Repeat("!", 44),
		"mixed alphabets":    "+_" + encoded[2:],
		"loose padding bits": encoded[:42] + "J=",
		"break inside":       encoded[:20] + "\n" + encoded[20:43],
		"base64 of 33 bytes": base64.StdEncoding.EncodeToString([]byte(text + "x")),
		"a space inside":     encoded[:20] + " " + encoded[20:43],
	} {
		_, err := keyring.Parse([]byte(data))
		if err == nil {
			t.Errorf("%s: parsed", name)
		} else if len(data) > 8 && strings.Contains(err.Error(), data[:8]) {
			t.Errorf("%s: the error quotes the key: %v", name, err)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString([]byte(binary))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(config.DefaultKeyVariable, text)
	t.Setenv("OTHER", strings.Repeat("o", 32))
	sources := append(keyring.Sources(), keyring.Source{Name: "vault",
		Read: func(_ context.Context, source config.KeySource) ([]byte, error) {
			if source.Source != "arn" {
				return nil, errors.New("denied")
			}
			return []byte(strings.Repeat("v", 32)), nil
		}})
	ring, err := keyring.Load(t.Context(), config.Secrets{
		EncryptionKey: &config.KeySource{Provider: "env"},
		OldEncryptionKeys: []config.KeySource{
			{Provider: "file", Source: path}, {Provider: "env", Source: "OTHER"}, {Provider: "vault", Source: "arn"},
			{Provider: "env", Source: config.DefaultKeyVariable}, // the current key again
		},
	}, sources)
	if err != nil {
		t.Fatal(err)
	}
	want := []envelope.Key{key(t, text), key(t, binary), key(t, strings.Repeat("o", 32)),
		key(t, strings.Repeat("v", 32))}
	got := ring.Keys()
	if len(got) != len(want) || !ring.Current.Equal(want[0]) {
		t.Fatalf("keys %v, want %v", got, want)
	}
	for i := range want {
		if !got[i].Equal(want[i]) {
			t.Errorf("key %d: %v, want %v", i, got[i], want[i])
		}
	}
	if ring, err := keyring.Load(t.Context(), config.Secrets{}, sources); err != nil || !ring.Current.IsZero() ||
		len(ring.Keys()) != 0 {
		t.Errorf("no keys: %v, %v", ring, err)
	}
}

// TestTextIsNoRandomKey checks that Ring.IsText is set for a key that is text, which a person may have chosen. It is
// not set for a base64 or binary key.
func TestTextIsNoRandomKey(t *testing.T) {
	for value, want := range map[string]bool{
		"thisisatest32bytekey123456789012": true, "a password of 32 characters ~~~~": true,
		"thisisatest32bytekey123456789012\n": true, "thisisatest32bytekey123456789012\r\n": true,
		base64.StdEncoding.EncodeToString([]byte(text)): false, strings.Repeat("k", 31) + "\xff": false,
		strings.Repeat("k", 31) + "\x01": false,
	} {
		t.Setenv(config.DefaultKeyVariable, value)
		ring, err := keyring.Load(t.Context(), config.Secrets{EncryptionKey: &config.KeySource{Provider: "env"}},
			keyring.Sources())
		if err != nil || ring.IsText != want {
			t.Errorf("a key of %d bytes: text %t, want %t, %v", len(value), ring.IsText, want, err)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Repeat("s", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("EMPTY", "")
	t.Setenv("SHORT", "sesame")
	for _, c := range []struct {
		source config.KeySource
		want   string
	}{
		{config.KeySource{Provider: "env", Source: "NSTANCE_NO_SUCH"},
			`env "NSTANCE_NO_SUCH": the variable is not set`},
		{config.KeySource{Provider: "env", Source: "EMPTY"}, `is empty`},
		{config.KeySource{Provider: "env", Source: "SHORT"}, `env "SHORT": 6 bytes, want 32`},
		{config.KeySource{Provider: "file"}, "no file is named"},
		{config.KeySource{Provider: "file", Source: path + "x"}, "no such file"},
		{config.KeySource{Provider: "file", Source: path}, "more than 4096 bytes"},
		{config.KeySource{Provider: "vault", Source: "x"}, `vault "x": this program has no such provider`},
	} {
		ring, err := keyring.Load(t.Context(), config.Secrets{EncryptionKey: &c.source,
			OldEncryptionKeys: []config.KeySource{c.source}}, keyring.Sources())
		if err == nil || strings.Count(err.Error(), c.want) != 2 || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%v, want twice %q", err, c.want)
		}
		if len(ring.Keys()) != 0 {
			t.Error("half a ring")
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte(binary)) + "\n"))
	f.Add([]byte(base64.RawURLEncoding.EncodeToString([]byte(binary))))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := keyring.Parse(data)
		if len(data) == envelope.KeySize && (err != nil || !got.Equal(key(t, string(data)))) {
			t.Errorf("32 bytes are not themselves: %v", err)
		}
		if (err == nil) == got.IsZero() {
			t.Errorf("key %v with error %v", got, err)
		}
	})
}

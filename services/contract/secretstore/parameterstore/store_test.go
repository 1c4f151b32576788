package parameterstore

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/nstance-kit/nstance/services/contract/secretstore"
	"github.com/nstance-kit/nstance/services/contract/secretstore/secretstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

func open(t *testing.T) (*fakeaws.Cloud, *ssm.Client) {
	cloud, err := fakeaws.New(fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cloud.Close(); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	access, secret := cloud.Credentials()
	return cloud, ssm.NewFromConfig(awssdk.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")})
}

func TestStore(t *testing.T) {
	secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
		_, client := open(t)
		return New(client, "/nstance/example/"), New(client, "/nstance/example/")
	})
}

func TestTooLarge(t *testing.T) {
	_, client := open(t)
	err := New(client, "/p/").Put(t.Context(), "x", secretstore.NewValue(make([]byte, 7000)), secretstore.Any)
	if !errors.Is(err, secretstore.ErrInvalid) || !strings.Contains(err.Error(), "8192") {
		t.Errorf("7,000 bytes that are no text: %v", err)
	}
}

// TestLostAnswer checks that the result of a creation with a lost answer is unknown. The SDK must not repeat the
// creation, because its own success would make the repeat fail.
func TestLostAnswer(t *testing.T) {
	cloud, client := open(t)
	store := New(client, "/p/")
	cloud.Faults().LoseAnswer(fault.Match{Service: "ssm", Action: "PutParameter"}, 1)
	err := store.Put(t.Context(), "x", secretstore.NewValue([]byte("ours")), secretstore.IfAbsent)
	if err == nil || errors.Is(err, secretstore.ErrExists) {
		t.Errorf("put: %v", err)
	}
	if secret, err := store.Get(t.Context(), "x"); err != nil || string(secret.Value.Reveal()) != "ours" {
		t.Errorf("get: %v, %v", secret, err)
	}
}

func TestEncoding(t *testing.T) {
	for content, kept := range map[string]bool{
		"plain text\nin lines": true, `{"a": "b"}`: true, "grüße": true,
		" space": false, "line\n": false, "{{ssm:x}}": false, "\x00": false, "\xff": false, marker + "eA==": false,
		"cr\r\nlf": false,
	} {
		text := encode([]byte(content))
		if (text == content) != kept {
			t.Errorf("%q is kept as %q", content, text)
		}
		if back, err := decode(text); err != nil || string(back) != content {
			t.Errorf("%q came back as %q, %v", content, back, err)
		}
	}
	if _, err := decode(marker + "!"); err == nil {
		t.Error("what is not base64 was decoded")
	}
}

func FuzzEncoding(f *testing.F) {
	f.Add([]byte("text"))
	f.Add([]byte{0, 255})
	f.Add([]byte(marker))
	f.Fuzz(func(t *testing.T, content []byte) {
		if back, err := decode(encode(content)); err != nil || string(back) != string(content) {
			t.Errorf("%q came back as %q, %v", content, back, err)
		}
	})
}

package aws

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ssm"

	"github.com/nstance-kit/nstance/services/store/secretstore"
	"github.com/nstance-kit/nstance/services/store/secretstore/secretstoretest"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws"
	"github.com/nstance-kit/nstance/tests/cloud/fakeaws/fault"
)

// open returns a fake cloud, and a configuration for clients of this cloud.
func open(t *testing.T) (*fakeaws.Cloud, awssdk.Config) {
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
	return cloud, awssdk.Config{Region: cloud.Region(), BaseEndpoint: &server.URL,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, "")}
}

func openParameters(t *testing.T) (*fakeaws.Cloud, *ssm.Client) {
	cloud, cfg := open(t)
	return cloud, ssm.NewFromConfig(cfg)
}

func TestParameterStore(t *testing.T) {
	secretstoretest.Run(t, func(t *testing.T) (a, b secretstore.Store) {
		_, client := openParameters(t)
		return NewParameterStore(client, "/nstance/example/"), NewParameterStore(client, "/nstance/example/")
	})
}

func TestParameterTooLarge(t *testing.T) {
	_, client := openParameters(t)
	binary := secretstore.NewValue(make([]byte, 7000))
	err := NewParameterStore(client, "/p/").Put(t.Context(), "x", binary, secretstore.Any)
	if !errors.Is(err, secretstore.ErrInvalid) || !strings.Contains(err.Error(), "8192") {
		t.Errorf("7,000 bytes that are no text: %v", err)
	}
}

// TestLostAnswerOfParameterStore checks that the result of a creation with a lost answer is unknown. The SDK must not
// repeat the creation, because a creation that succeeded unnoticed would make the repeat fail.
func TestLostAnswerOfParameterStore(t *testing.T) {
	cloud, client := openParameters(t)
	store := NewParameterStore(client, "/p/")
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
		"plain text\nin lines": true, "a\tb": true, `{"a": "b"}`: true, "grüße": true,
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

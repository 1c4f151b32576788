package credentials

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// keyID is the ID of the key that signs identity tokens.
const keyID = "key-1"

// signer is the key that signs identity tokens.
var signer = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// SignIdentity returns a signed identity token.
func SignIdentity(claims jwt.Claims) (string, error) {
	key, err := signer()
	if err != nil {
		return "", err
	}
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	token.Header["kid"] = keyID
	return token.SignedString(key)
}

// IdentityKeys answers like https://www.googleapis.com/oauth2/v1/certs. It returns the certificates of the keys that
// sign identity tokens, by key ID.
func IdentityKeys(w http.ResponseWriter, _ *http.Request) {
	text, err := certificate()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	answer, err := json.Marshal(map[string]string{keyID: text})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.Header().Set("Cache-Control", "public, max-age=21600, must-revalidate, no-transform")
	_, _ = w.Write(answer)
}

// certificate returns a certificate in PEM for the key that signs identity tokens.
func certificate() (string, error) {
	key, err := signer()
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return "", fmt.Errorf("make a certificate: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), nil
}

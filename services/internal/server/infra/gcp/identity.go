package gcp

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
)

const (
	// issuer is the value of the claim "iss" in Google's identity tokens.
	issuer = "https://accounts.google.com"
	// googleKeys is the URL of the service that publishes the keys of identity tokens.
	// https://cloud.google.com/compute/docs/instances/verifying-instance-identity#verify_signature
	googleKeys = "https://www.googleapis.com/oauth2/v1/"
	// maxToken bounds an identity token in bytes. Google's tokens have about 1,200 bytes.
	maxToken = 8 << 10
	// maxKeys bounds the list of keys in bytes. The list has two or three certificates.
	maxKeys = 64 << 10
	// keysTimeout bounds one request for the keys.
	keysTimeout = 5 * time.Second
	// keysPause is the minimum time between two requests for the keys. After a failed request, registrations fail
	// immediately until this time has passed, so that no client can make the leader send many requests.
	keysPause = 10 * time.Second
)

// signingKeys are the public keys with which Google's identity tokens are checked, by key ID. The provider reads the
// keys again only when they expire. That suffices, because Google publishes a new key before it signs with the key.
type signingKeys struct {
	client *http.Client
	now    func() time.Time

	mu      sync.Mutex
	keys    map[string]*rsa.PublicKey
	expires time.Time
	failed  error // of the last request
	next    time.Time
}

// get returns the current keys. A request for the keys serves all callers, so it goes on when the caller's ctx ends.
func (k *signingKeys) get(ctx context.Context) (map[string]*rsa.PublicKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	if now.Before(k.expires) {
		return k.keys, nil
	}
	if now.Before(k.next) {
		return nil, k.failed
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keysTimeout)
	defer cancel()
	keys, life, err := k.read(ctx)
	k.next = k.now().Add(keysPause)
	if err != nil {
		k.failed = fmt.Errorf("read Google's keys: %w", err)
		return nil, k.failed
	}
	k.keys, k.expires = keys, now.Add(max(life, keysPause))
	return k.keys, nil
}

var maxAge = regexp.MustCompile(`\bmax-age=([0-9]{1,9})\b`)

// read asks Google for the keys and for the time for which the provider may keep them.
func (k *signingKeys) read(ctx context.Context) (keys map[string]*rsa.PublicKey, life time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, googlecloud.Endpoint("oauth2", googleKeys)+"certs",
		http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("%s answered %s", req.URL, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys))
	if err != nil {
		return nil, 0, err
	}
	if keys, err = parseKeys(body); err != nil {
		return nil, 0, fmt.Errorf("parse the answer of %s: %w", req.URL, err)
	}
	if age := maxAge.FindStringSubmatch(resp.Header.Get("Cache-Control")); age != nil {
		seconds, _ := strconv.Atoi(age[1])
		life = time.Duration(seconds) * time.Second
	}
	return keys, life, nil
}

// parseKeys parses a JSON object that maps key IDs to certificates in PEM.
func parseKeys(body []byte) (map[string]*rsa.PublicKey, error) {
	var certificates map[string]string
	if err := json.Unmarshal(body, &certificates); err != nil {
		return nil, err
	}
	keys := map[string]*rsa.PublicKey{}
	for id, text := range certificates {
		key, err := jwt.ParseRSAPublicKeyFromPEM([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("key %.100q: %w", id, err)
		}
		keys[id] = key
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key")
	}
	return keys, nil
}

// identityToken holds the claims that the provider checks in an identity token of Google's format "full".
type identityToken struct {
	jwt.RegisteredClaims

	Google struct {
		ComputeEngine struct {
			InstanceID string `json:"instance_id"`
			ProjectID  string `json:"project_id"`
			Zone       string `json:"zone"`
		} `json:"compute_engine"`
	} `json:"google"`
}

// parseToken verifies the signature, the issuer, the audience and the times of an identity token.
func parseToken(proof []byte, keys map[string]*rsa.PublicKey, audience string, now func() time.Time) (
	claims identityToken, err error) {
	if len(proof) > maxToken {
		return claims, fmt.Errorf("the proof has %d bytes, at most %d are allowed", len(proof), maxToken)
	}
	_, err = jwt.ParseWithClaims(string(proof), &claims, func(token *jwt.Token) (any, error) {
		id, _ := token.Header["kid"].(string)
		if key := keys[id]; key != nil {
			return key, nil
		}
		return nil, fmt.Errorf("there is no key %.100q", id)
	}, jwt.WithValidMethods([]string{"RS256"}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithTimeFunc(now), jwt.WithLeeway(time.Minute))
	if err != nil {
		return claims, fmt.Errorf("verify the identity token: %w", err)
	}
	return claims, nil
}

// Attest implements infra.Attestor with the identity token of the VM. It reads Google's keys when they have expired.
func (p *Provider) Attest(ctx context.Context, proof []byte, vm infra.VM) error {
	what := "attest " + vm.ProviderID
	if vm.ProviderID == "" || vm.Tags.Instance.IsZero() {
		return infra.Errorf(infra.NotFound, what, "the VM is not known yet")
	}
	if len(proof) == 0 {
		return infra.Errorf(infra.Denied, what, "the agent sent no %s; its VM needs a service account for it",
			contract.Attestation)
	}
	keys, err := p.keys.get(ctx)
	if err != nil {
		return infra.Wrap(infra.Indeterminate, what, err)
	}
	token, err := parseToken(proof, keys, contract.Audience(vm.Tags.Instance.String()), p.cfg.Now)
	if err != nil {
		return infra.Wrap(infra.Denied, what, err)
	}
	claims := token.Google.ComputeEngine
	for _, fact := range []struct{ name, got, want string }{{"instance", claims.InstanceID, vm.ProviderID},
		{"project", claims.ProjectID, p.cfg.Project}, {"zone", claims.Zone, p.cfg.Zone}} {
		if fact.got != fact.want || fact.got == "" {
			return infra.Errorf(infra.Denied, what, "the proof is for %s %.100q, not %q", fact.name, fact.got,
				fact.want)
		}
	}
	return nil
}

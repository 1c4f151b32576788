package authority_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

func agentNonce(t testing.TB) authority.NonceSpec {
	return authority.NonceSpec{
		Role: authority.RoleAgent, Cluster: "example", Tenant: "prod", ID: agent(t).ID, Shard: "us-west-2a",
		Group:      "workers",
		ConfigHash: "9f86d081884c7d65", OnDemand: true,
	}
}

func operatorNonce() authority.NonceSpec {
	return authority.NonceSpec{Role: authority.RoleOperator, Cluster: "example", Tenant: "prod"}
}

func nonceKey(t testing.TB) authority.NonceKey {
	return must[authority.NonceKey](t)(authority.CreateNonceKey(random(6)))
}

func TestNonceClaims(t *testing.T) {
	_, claims, err := authority.MintNonce(nonceKey(t), agentNonce(t), random(1), t0.Add(300*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if len(claims.JTI) != 32 || claims.IssuedAt != t0 || claims.NotBefore != t0.Add(-5*time.Minute) ||
		claims.ExpiresAt != t0.Add(5*time.Minute) {
		t.Errorf("%+v", claims)
	}
	_, claims, err = authority.MintNonce(nonceKey(t), operatorNonce(), random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	if claims.ID.Prefix() != ident.OperatorPrefix || claims.JTI != claims.ID.String() ||
		claims.ExpiresAt != t0.Add(3*time.Hour) {
		t.Errorf("%+v", claims)
	}
	given := operatorNonce()
	given.ID = operator(t).ID
	if _, claims, err = authority.MintNonce(nonceKey(t), given, random(1), t0); err != nil || claims.ID != given.ID {
		t.Errorf("%+v, %v", claims, err)
	}
}

// TestNonceOfBatch checks that the nonce of a batch names no instance.
func TestNonceOfBatch(t *testing.T) {
	spec := agentNonce(t)
	spec.Batch, spec.ID = spec.ID.Batch(), ident.ID{}
	key := nonceKey(t)
	nonce, want, err := authority.MintNonce(key, spec, random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	got, err := authority.ParseNonce(key.Accepted(), "example", nonce.Reveal(), t0, false)
	if err != nil || got != want || got.Batch != spec.Batch || !got.ID.IsZero() {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func TestMintRefuses(t *testing.T) {
	for name, change := range map[string]func(*authority.NonceSpec){
		"role":       func(s *authority.NonceSpec) { s.Role = authority.RoleServer },
		"no role":    func(s *authority.NonceSpec) { s.Role = "" },
		"tenant":     func(s *authority.NonceSpec) { s.Tenant = "" },
		"shard":      func(s *authority.NonceSpec) { s.Shard = "" },
		"group":      func(s *authority.NonceSpec) { s.Group = "No" },
		"no ID":      func(s *authority.NonceSpec) { s.ID = ident.ID{} },
		"operator":   func(s *authority.NonceSpec) { s.ID = operator(t).ID },
		"past":       func(s *authority.NonceSpec) { s.TTL = -time.Minute },
		"short":      func(s *authority.NonceSpec) { s.TTL = time.Second - 1 },
		"long hash":  func(s *authority.NonceSpec) { s.ConfigHash = strings.Repeat("a", 129) },
		"other role": func(s *authority.NonceSpec) { s.Role = authority.RoleOperator; s.ID = operator(t).ID },
		"both":       func(s *authority.NonceSpec) { s.Batch = s.ID.Batch() },
		"batch of operators": func(s *authority.NonceSpec) {
			*s = operatorNonce()
			s.Batch = operator(t).ID.Batch()
		},
	} {
		spec := agentNonce(t)
		change(&spec)
		if _, _, err := authority.MintNonce(nonceKey(t), spec, random(1), t0); err == nil {
			t.Errorf("%s: minted", name)
		}
	}
	if _, _, err := authority.MintNonce(authority.NonceKey{}, agentNonce(t), random(1), t0); err == nil {
		t.Error("minted without a key")
	}
}

func TestParseNonceTimes(t *testing.T) {
	nonce, want, err := authority.MintNonce(nonceKey(t), agentNonce(t), random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		at      time.Duration
		expired bool
		want    error
	}{
		{"now", 0, false, nil},
		{"slow clock", -5 * time.Minute, false, nil},
		{"slower clock", -5*time.Minute - time.Second, false, authority.ErrNonceEarly},
		{"slower clock, expired allowed", -5*time.Minute - time.Second, true, authority.ErrNonceEarly},
		{"last second", 5*time.Minute - time.Second, false, nil},
		{"end", 5 * time.Minute, false, authority.ErrNonceExpired},
		{"end, allowed", 5 * time.Minute, true, nil},
		{"much later, allowed", 1000 * time.Hour, true, nil},
	} {
		got, err := authority.ParseNonce(nonceKey(t).Accepted(), "example", nonce.Reveal(), t0.Add(c.at), c.expired)
		if !errors.Is(err, c.want) || err == nil && got != want {
			t.Errorf("%s: %+v, %v", c.name, got, err)
		}
	}
}

// forge signs any claims with the right key.
func forge(t testing.TB, header, claims map[string]any) string {
	part := func(v any) string {
		return base64.RawURLEncoding.EncodeToString(must[[]byte](t)(json.Marshal(v)))
	}
	text := part(header) + "." + part(claims)
	private := must[[]byte](t)(nonceKey(t).MarshalSecret())
	key := must[any](t)(jwt.ParseEdPrivateKeyFromPEM(private))
	return text + "." + base64.RawURLEncoding.EncodeToString(ed25519.Sign(key.(ed25519.PrivateKey), []byte(text)))
}

func TestParseNonceRefuses(t *testing.T) {
	key := nonceKey(t)
	nonce, _, err := authority.MintNonce(key, agentNonce(t), random(1), t0)
	if err != nil {
		t.Fatal(err)
	}
	good := nonce.Reveal()
	parts := strings.Split(good, ".")
	header := map[string]any{"alg": "EdDSA", "typ": "JWT"}
	claims := func(change func(map[string]any)) string {
		var m map[string]any
		if err := json.Unmarshal(must[[]byte](t)(base64.RawURLEncoding.DecodeString(parts[1])), &m); err != nil {
			t.Fatal(err)
		}
		change(m)
		return forge(t, header, m)
	}
	set := func(name string, value any) string { return claims(func(m map[string]any) { m[name] = value }) }
	drop := func(name string) string { return claims(func(m map[string]any) { delete(m, name) }) }
	if _, err := authority.ParseNonce(key.Accepted(), "example", claims(func(map[string]any) {}), t0,
		false); err != nil {
		t.Fatal("the forger is no good:", err)
	}
	malformed := authority.ErrNonceMalformed
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"empty":        {"", malformed},
		"two parts":    {parts[0] + "." + parts[1], malformed},
		"four parts":   {good + ".x", malformed},
		"line break":   {good + "\n", malformed},
		"padding":      {good + "=", malformed},
		"huge":         {good + strings.Repeat("A", authority.MaxNonce), malformed},
		"no algorithm": {forge(t, map[string]any{"alg": "none", "typ": "JWT"}, nil), malformed},
		"HS256": {must[string](t)(jwt.NewWithClaims(jwt.SigningMethodHS256,
			jwt.MapClaims{}).SignedString([]byte(key.Public()))), malformed},
		"critical": {forge(t, map[string]any{"alg": "EdDSA", "crit": []string{"x"}, "typ": "JWT"}, nil),
			malformed},
		"signature of other": {parts[0] + "." + parts[1] + "." + strings.Repeat("A", 86), authority.ErrNonceSignature},
		"changed claims": {parts[0] + "." + strings.Split(set("group", "others"), ".")[1] + "." + parts[2],
			authority.ErrNonceSignature},
		"other cluster":       {set("cluster_id", "elsewhere"), authority.ErrNonceCluster},
		"issuer":              {set("iss", "someone"), malformed},
		"no issuer":           {drop("iss"), malformed},
		"audience":            {set("aud", "someone"), malformed},
		"two audiences":       {set("aud", []string{"nstance-registration", "x"}), malformed},
		"no audience":         {drop("aud"), malformed},
		"no end":              {drop("exp"), malformed},
		"no beginning":        {drop("nbf"), malformed},
		"no time of issue":    {drop("iat"), malformed},
		"no kind":             {drop("kind"), malformed},
		"server":              {set("kind", "server"), malformed},
		"agent as operator":   {set("kind", "operator"), malformed},
		"bad tenant":          {set("tenant", "../x"), malformed},
		"bad instance":        {set("sub", "x"), malformed},
		"operator's instance": {set("sub", operator(t).ID.String()), malformed},
		"bad jti":             {set("jti", ""), malformed},
		"jti is not hex":      {set("jti", strings.Repeat("g", 32)), malformed},
		"long hash":           {set("config_hash", strings.Repeat("a", 129)), malformed},
		"ends before it begins": {claims(func(m map[string]any) {
			m["nbf"] = m["exp"]
		}), malformed},
		"role of operators": {set("operator_role", "admin"), malformed},
		"unknown claim":     {set("admin", true), malformed},
		"type":              {set("tenant", 1), malformed},
		"not an object":     {forge(t, header, nil), malformed},
	} {
		got, err := authority.ParseNonce(key.Accepted(), "example", c.text, t0, false)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %+v, %v, want %v", name, got, err, c.want)
		}
		if err != nil && len(c.text) > 0 && (strings.Contains(err.Error(), parts[2]) ||
			strings.Contains(err.Error(), parts[1])) {
			t.Errorf("%s: the error quotes the nonce", name)
		}
	}
	if _, err := authority.ParseNonce([]ed25519.PublicKey{public(1)}, "example", good, t0, false); !errors.Is(err,
		authority.ErrNonceSignature) {
		t.Error("another cluster's key:", err)
	}
	if _, err := authority.ParseNonce(nil, "example", good, t0, false); err == nil {
		t.Error("parsed without a key")
	}
}

func TestParseNonceKeyRefuses(t *testing.T) {
	secret := must[[]byte](t)(nonceKey(t).MarshalSecret())
	both := must[[]byte](t)(nonceKey(t).Accepting(must[authority.NonceKey](t)(
		authority.CreateNonceKey(random(8)))).MarshalSecret())
	for name, text := range map[string][]byte{
		"empty":    nil,
		"raw seed": bytes.Repeat([]byte{1}, 32),
		"twice":    append(bytes.Clone(secret), secret...),
		"three":    slices.Concat(both, both[bytes.LastIndex(both, []byte("-----BEGIN")):]),
		"too long": append(bytes.Clone(secret), bytes.Repeat([]byte("\n"), 64<<10)...),
		"damaged":  []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
		"CA":       must[[]byte](t)(newCA(t).MarshalSecret()),
		"cut off":  secret[:len(secret)-10],
	} {
		if _, err := authority.ParseNonceKey(text); err == nil {
			t.Errorf("%s: parsed", name)
		}
	}
}

func FuzzParseNonce(f *testing.F) {
	key := nonceKey(f)
	known := map[string]bool{}
	for _, spec := range []authority.NonceSpec{agentNonce(f), operatorNonce()} {
		nonce, _, err := authority.MintNonce(key, spec, random(1), t0)
		if err != nil {
			f.Fatal(err)
		}
		known[nonce.Reveal()] = true
		f.Add(nonce.Reveal())
	}
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := authority.ParseNonce(key.Accepted(), "example", text, t0, true); (err == nil) != known[text] {
			t.Errorf("%v", err)
		}
	})
}

func FuzzParseNonceKey(f *testing.F) {
	f.Add(must[[]byte](f)(nonceKey(f).MarshalSecret()))
	other := must[authority.NonceKey](f)(authority.CreateNonceKey(random(8)))
	f.Add(must[[]byte](f)(nonceKey(f).Accepting(other).MarshalSecret()))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := authority.ParseNonceKey(data)
		if err != nil {
			return
		}
		if _, _, err := authority.MintNonce(key, operatorNonce(), random(1), t0); err != nil {
			t.Error(err)
		}
		again, err := authority.ParseNonceKey(must[[]byte](t)(key.MarshalSecret()))
		if err != nil || !slices.EqualFunc(again.Accepted(), key.Accepted(), equal) {
			t.Errorf("%d keys became %d: %v", len(key.Accepted()), len(again.Accepted()), err)
		}
	})
}

func equal(a, b ed25519.PublicKey) bool { return a.Equal(b) }

// FuzzParseNextKeys checks that keys stay the same when they are parsed, marshaled and parsed again.
func FuzzParseNextKeys(f *testing.F) {
	next := authority.NextKeys{CA: newCA(f)}
	f.Add(must[[]byte](f)(next.MarshalSecret()))
	next.Nonce = nonceKey(f)
	f.Add(must[[]byte](f)(next.MarshalSecret()))
	f.Fuzz(func(t *testing.T, data []byte) {
		next, err := authority.ParseNextKeys(data)
		if err != nil {
			return
		}
		again, err := authority.ParseNextKeys(must[[]byte](t)(next.MarshalSecret()))
		if err != nil || !again.CA.Certificate().Equal(next.CA.Certificate()) ||
			!again.Nonce.Public().Equal(next.Nonce.Public()) {
			t.Errorf("other keys: %v", err)
		}
	})
}

// TestAcceptedNonces checks that a key accepts its own nonces, those of the key given to Accepting, and no others.
func TestAcceptedNonces(t *testing.T) {
	key, others := nonceKey(t), []authority.NonceKey{}
	for seed := range byte(2) {
		others = append(others, must[authority.NonceKey](t)(authority.CreateNonceKey(random(20+seed))))
	}
	both := must[authority.NonceKey](t)(authority.ParseNonceKey(must[[]byte](t)(
		key.Accepting(others[0]).Accepting(others[1]).MarshalSecret())))
	for who, c := range map[string]struct {
		key  authority.NonceKey
		want error
	}{
		"itself": {key, nil}, "the other": {others[1], nil},
		"an earlier other": {others[0], authority.ErrNonceSignature},
	} {
		nonce, _, err := authority.MintNonce(c.key, operatorNonce(), random(1), t0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := authority.ParseNonce(both.Accepted(), "example", nonce.Reveal(), t0, false); !errors.Is(err,
			c.want) {
			t.Errorf("a nonce of %s: %v, want %v", who, err, c.want)
		}
	}
	if alone := both.Accepting(authority.NonceKey{}); len(alone.Accepted()) != 1 {
		t.Errorf("without another key %d are accepted", len(alone.Accepted()))
	}
}

package infra

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
)

// Digest identifies the request's bytes: two requests with the same digest are the same request. It is safe to store:
// it does not give the userdata away. It fails when Args hold something that JSON cannot.
func (r CreateRequest) Digest() (string, error) {
	type plain CreateRequest // without the redacting methods
	raw, err := json.Marshal(plain(r))
	if err != nil {
		return "", fmt.Errorf("digest of create request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// String leaves out userdata and args.
func (r CreateRequest) String() string {
	return fmt.Sprintf("create %s type=%q subnet=%q userdata=[%d bytes]", r.Tags.Instance, r.InstanceType, r.Subnet,
		len(r.Userdata))
}

// GoString is [CreateRequest.String], so that %#v does not show userdata either.
func (r CreateRequest) GoString() string { return r.String() }

// LogValue is [CreateRequest.String].
func (r CreateRequest) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalJSON refuses: whoever wants to store a request stores its [CreateRequest.Digest].
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%s: a create request holds a nonce and is not to be written down", r)
}

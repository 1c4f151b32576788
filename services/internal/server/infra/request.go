package infra

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/nstance-kit/nstance/services/contract/cloud"
)

// Digest returns a hash of the request. Two requests with the same digest are equal. The digest is safe to store,
// because it does not reveal the userdata. Digest fails if Args hold a value that JSON cannot represent.
func (r CreateRequest) Digest() (string, error) {
	type plain CreateRequest // without the redacting methods
	raw, err := json.Marshal(plain(r))
	if err != nil {
		return "", fmt.Errorf("digest of create request: %w", err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// DecodeArgs copies args, which a cloud's contract has decoded and checked, into the request of the cloud's SDK. The
// error lists all problems that the contract found.
func DecodeArgs(decoded map[string]any, found []cloud.Problem, into any) error {
	if err := JoinProblems(found, "args"); err != nil {
		return err
	}
	// The decoded values have the types of the SDK's fields, and the API and the SDK name the fields alike. So JSON can
	// copy the values.
	text, err := json.Marshal(decoded)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("args: %w", err)
	}
	return nil
}

// String describes the request without userdata and args.
func (r CreateRequest) String() string {
	return fmt.Sprintf("create %s type=%q subnet=%q userdata=[%d bytes]", r.Tags.Instance, r.InstanceType, r.Subnet,
		len(r.Userdata))
}

// GoString returns [CreateRequest.String], so that %#v does not show userdata either.
func (r CreateRequest) GoString() string { return r.String() }

// LogValue returns [CreateRequest.String].
func (r CreateRequest) LogValue() slog.Value { return slog.StringValue(r.String()) }

// MarshalJSON always fails, so that no program stores a request with the nonce in its userdata. Store
// [CreateRequest.Digest] instead.
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	return nil, fmt.Errorf("%s: a create request holds a nonce and is not to be written down", r)
}

package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/nstance-kit/nstance/services/api/operatorclient"
)

// ErrNoIdentity means that the directory has no complete identity.
var ErrNoIdentity = errors.New("no identity")

// LoadIdentity reads and checks an identity directory. The error wraps [ErrNoIdentity] if a file is missing. No error
// quotes the key.
func LoadIdentity(dir string) (operatorclient.Identity, error) {
	if dir == "" {
		return operatorclient.Identity{}, fmt.Errorf("%w: no directory is named", ErrNoIdentity)
	}
	ca, certificate, key, err := operatorclient.ReadFiles(dir)
	var missing *fs.PathError
	if errors.Is(err, fs.ErrNotExist) && errors.As(err, &missing) {
		return operatorclient.Identity{}, fmt.Errorf("%w: %s is missing in %s", ErrNoIdentity,
			filepath.Base(missing.Path), dir)
	}
	var identity operatorclient.Identity
	if err == nil {
		identity, err = operatorclient.ParseIdentity(ca, certificate, key)
	}
	if err != nil {
		return operatorclient.Identity{}, fmt.Errorf("read the identity in %s: %w", dir, err)
	}
	return identity, nil
}

// ExpiredError means that the operator's own certificate has expired.
type ExpiredError struct{ At time.Time }

func (e *ExpiredError) Error() string {
	return fmt.Sprintf("the certificate %s in the identity directory ended at %s", operatorclient.CertificateFile,
		e.At.UTC().Format(time.RFC3339))
}

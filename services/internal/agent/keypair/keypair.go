// Package keypair generates and stores the key pairs for the certificates of the agent's instance.
//
// Invariant: a private key never leaves its folder. It is generated once and kept. Requests for the same name and
// algorithm return the same public key, also across restarts. The public file is always derived from the private file.
package keypair

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

const (
	privateExt = ".key"
	publicExt  = ".pub"
	// maxKeys is the largest number of keys that a server accepts in a report.
	maxKeys = 128
)

// Private removes the permissions of everybody except the owner and the group from a file mode. Nobody else may read a
// private key.
func Private(mode fs.FileMode) fs.FileMode { return mode &^ 0o007 }

// Store keeps key pairs in a folder: "x.key" (PKCS#8 PEM) and "x.pub" (PKIX PEM). It is safe for concurrent use.
type Store struct {
	dir  folder.Folder
	mode fs.FileMode

	mu     sync.Mutex
	pairs  map[string]pair  // by name of the public file
	failed map[string]error // errors of failed requests, by requested name
}

type pair struct {
	stamp folder.Stamp // of the private file
	sum   string       // hex SHA-256 of the PKIX public key
}

// NewStore returns the store in a folder. Public files get the given mode. Private files get the same mode without the
// permissions of others.
func NewStore(dir folder.Folder, mode fs.FileMode) *Store {
	return &Store{dir: dir, mode: mode, pairs: map[string]pair{}, failed: map[string]error{}}
}

// Ensure returns the public key (PKIX, DER) of the named pair. name is the name of the public file, which ends in
// ".pub". Ensure generates a pair if there is none, or if the existing pair does not have the requested algorithm. If
// no algorithm is requested, any existing pair is kept, and a new pair uses Ed25519.
func (s *Store) Ensure(name string, algorithm nstancev1.KeyAlgorithm) (pkix []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pkix, err = s.ensure(name, algorithm)
	if err != nil {
		if len(s.failed) < maxKeys {
			s.failed[cmp.Or(folder.Clip(name, folder.MaxReportedName), "(no name)")] = err
		}
		return nil, err
	}
	delete(s.failed, name)
	return pkix, nil
}

func (s *Store) ensure(name string, algorithm nstancev1.KeyAlgorithm) ([]byte, error) {
	if err := folder.ValidateName(name); err != nil {
		return nil, err
	}
	stem, ok := strings.CutSuffix(name, publicExt)
	if !ok || stem == "" {
		return nil, fmt.Errorf("the name of a public key ends in %q", publicExt)
	}
	text, err := s.dir.Read(stem + privateExt)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read private key: %w", err)
	}
	var key crypto.Signer
	if err == nil {
		// A damaged key may be in use, so it is not replaced. A person must decide what to do.
		if key, err = authority.ParseSigner(text); err != nil {
			return nil, fmt.Errorf("private key: %w", err)
		}
	}
	if key == nil || !fits(key, algorithm) {
		if key, err = generate(algorithm); err != nil {
			return nil, err
		}
		if text, err = authority.EncodePrivateKey(key); err != nil {
			return nil, err
		}
		if err := s.dir.Write(stem+privateExt, text, Private(s.mode)); err != nil {
			return nil, fmt.Errorf("write private key: %w", err)
		}
	}
	der, text, err := public(key)
	if err != nil {
		return nil, err
	}
	// After a crash between the two writes, the public file is missing or belongs to an older key.
	if stored, err := s.dir.Read(name); err != nil || !bytes.Equal(stored, text) {
		if err := s.dir.Write(name, text, s.mode); err != nil {
			return nil, fmt.Errorf("write public key: %w", err)
		}
	}
	stamp, err := s.dir.Stat(stem + privateExt)
	if err != nil {
		return nil, fmt.Errorf("look at private key: %w", err)
	}
	s.pairs[name] = pair{stamp: stamp, sum: folder.Sum(der)}
	return der, nil
}

func fits(key crypto.Signer, algorithm nstancev1.KeyAlgorithm) bool {
	switch algorithm {
	case nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519:
		_, ok := key.(ed25519.PrivateKey)
		return ok
	case nstancev1.KeyAlgorithm_KEY_ALGORITHM_ECDSA_P256:
		k, ok := key.(*ecdsa.PrivateKey)
		return ok && k.Curve == elliptic.P256()
	default:
		return true
	}
}

func generate(algorithm nstancev1.KeyAlgorithm) (crypto.Signer, error) {
	switch algorithm {
	case nstancev1.KeyAlgorithm_KEY_ALGORITHM_UNSPECIFIED, nstancev1.KeyAlgorithm_KEY_ALGORITHM_ED25519:
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	case nstancev1.KeyAlgorithm_KEY_ALGORITHM_ECDSA_P256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		return nil, fmt.Errorf("key algorithm %d is unknown; a newer agent may know it", algorithm)
	}
}

// Clear removes all key pairs.
func (s *Store) Clear() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.dir.List()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list keys: %w", err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, privateExt) || strings.HasSuffix(name, publicExt) {
			if err := s.dir.Remove(name); err != nil {
				return fmt.Errorf("remove key: %w", err)
			}
		}
	}
	clear(s.pairs)
	return nil
}

// States returns the state of every pair in the folder and the error of every failed request. The result is sorted by
// name and has at most 128 entries.
func (s *Store) States() []*nstancev1.KeyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[string]*nstancev1.KeyState{}
	names, err := s.dir.List()
	if err != nil {
		names = nil
		for name := range s.pairs {
			states[name] = &nstancev1.KeyState{Name: name, Error: fmt.Sprintf("list keys: %v", err)}
		}
	}
	for _, private := range names {
		if stem, ok := strings.CutSuffix(private, privateExt); ok {
			name := stem + publicExt
			states[name] = s.readState(name, private)
		}
	}
	maps.DeleteFunc(s.pairs, func(name string, _ pair) bool { return states[name] == nil })
	for name, err := range s.failed {
		states[name] = &nstancev1.KeyState{Name: name, Error: folder.Clip(err.Error(), folder.MaxReportedText)}
	}
	sorted := slices.SortedFunc(maps.Values(states), func(a, b *nstancev1.KeyState) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return sorted[:min(len(sorted), maxKeys)]
}

// readState returns the state of one pair. It reads the key only if its file has changed.
func (s *Store) readState(name, private string) *nstancev1.KeyState {
	state := &nstancev1.KeyState{Name: name}
	stamp, err := s.dir.Stat(private)
	if err != nil {
		state.Error = err.Error()
		return state
	}
	known, ok := s.pairs[name]
	if !ok || known.stamp != stamp {
		text, err := s.dir.Read(private)
		if err == nil {
			var key crypto.Signer
			if key, err = authority.ParseSigner(text); err == nil {
				var der []byte
				if der, _, err = public(key); err == nil {
					known = pair{stamp: stamp, sum: folder.Sum(der)}
				}
			}
		}
		if err != nil {
			state.Error = "private key: " + err.Error()
			return state
		}
		s.pairs[name] = known
	}
	state.Sha256 = known.sum
	return state
}

const publicType = "PUBLIC KEY" // PKIX, RFC 7468 section 13

// public returns a public key in PKIX form, as DER and as PEM.
func public(key crypto.Signer) (der, text []byte, err error) {
	der, err = x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode public key: %w", err)
	}
	return der, pem.EncodeToMemory(&pem.Block{Type: publicType, Bytes: der}), nil
}

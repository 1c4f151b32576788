package main

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// keys are the keys that sign a release. Each may be nil.
type keys struct {
	minisign *minisign.PrivateKey
	gpg      *openpgp.Entity
}

// readKeys reads the keys from the environment. No error contains a key or a password.
func readKeys() (k keys, err error) {
	if text := os.Getenv("NSTANCE_MINISIGN_KEY"); text != "" {
		var key minisign.PrivateKey
		if minisign.IsEncrypted([]byte(text)) {
			key, err = minisign.DecryptKey(os.Getenv("NSTANCE_MINISIGN_PASSWORD"), []byte(text))
		} else {
			err = key.UnmarshalText([]byte(text))
		}
		if err != nil {
			return k, errors.New("NSTANCE_MINISIGN_KEY is no minisign key, or NSTANCE_MINISIGN_PASSWORD does not " +
				"open it")
		}
		k.minisign = &key
	}
	if text := os.Getenv("NSTANCE_GPG_KEY"); text != "" {
		ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(text))
		if err != nil || len(ring) != 1 || ring[0].PrivateKey == nil {
			return k, errors.New("NSTANCE_GPG_KEY is not one armored private key (gpg --armor --export-secret-keys ID)")
		}
		if ring[0].PrivateKey.Encrypted {
			if err := ring[0].DecryptPrivateKeys([]byte(os.Getenv("NSTANCE_GPG_PASSWORD"))); err != nil {
				return k, errors.New("NSTANCE_GPG_PASSWORD does not open NSTANCE_GPG_KEY")
			}
		}
		k.gpg = ring[0]
	}
	return k, nil
}

// minisigned returns the minisign signature of a text.
func (k keys) minisigned(text []byte, comment string) ([]byte, error) {
	reader := minisign.NewReader(bytes.NewReader(text))
	if _, err := io.Copy(io.Discard, reader); err != nil {
		return nil, err
	}
	public, ok := k.minisign.Public().(minisign.PublicKey)
	if !ok {
		return nil, errors.New("the minisign key has no public key")
	}
	return reader.SignWithComments(*k.minisign, comment, fmt.Sprintf("signature from key %X", public.ID())), nil
}

// detached returns the OpenPGP signature of a text. The signature's time is the time of the release, or the creation
// time of the signing key if the key is newer. Equal texts therefore have equal signatures.
func (k keys) detached(text []byte, created time.Time) ([]byte, error) {
	if made := k.gpg.PrimaryKey.CreationTime; made.After(created) {
		created = made
	}
	for _, subkey := range k.gpg.Subkeys {
		if made := subkey.PublicKey.CreationTime; made.After(created) {
			created = made
		}
	}
	salted := false
	config := &packet.Config{DefaultHash: crypto.SHA512, NonDeterministicSignaturesViaNotation: &salted,
		Time: func() time.Time { return created }}
	var out bytes.Buffer
	if err := openpgp.DetachSign(&out, k.gpg, bytes.NewReader(text), config); err != nil {
		return nil, fmt.Errorf("sign with NSTANCE_GPG_KEY: %w", err)
	}
	return out.Bytes(), nil
}

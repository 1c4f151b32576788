// Package envelope seals secrets before they are sent to a bucket. It uses AES-256-GCM, and each blob names the key
// that opens it.
//
// A blob holds, in this order: the magic "NSTE", one format byte (2), the key ID (8 bytes), the version of the secret
// (8 bytes, big-endian), a random nonce (12 bytes), and the ciphertext with its tag (16 bytes). The additional
// authenticated data are, in this order: the bytes of the blob that precede the nonce, the length of the cluster ID,
// the cluster ID, the length of the secret's name, and the name. The lengths have 4 bytes, big-endian. Blobs of format
// 1 have no version of the secret. [Open] still accepts them.
//
// Invariant: a blob opens only with the key that it names, and only for the cluster and the secret's name for which it
// was sealed.
package envelope

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MaxPlaintext is the maximum size of a secret in bytes.
const MaxPlaintext = 1 << 20

const (
	magic      = "NSTE"
	format     = 2 // of new blobs
	idEnd      = len(magic) + 1 + idSize
	headerSize = idEnd + 8
	nonceSize  = 12 // random (NIST SP 800-38D, section 8.2.2), so at most 2^32 blobs per key
	tagSize    = 16
	overhead   = headerSize + nonceSize + tagSize
)

// Errors of Open and KeyID. The error messages have more details.
var (
	// ErrFormat means that the blob is not an envelope, or was truncated.
	ErrFormat = errors.New("not a sealed secret")
	// ErrNewer means that a newer program sealed the blob.
	ErrNewer = errors.New("sealed by a newer version of nstance")
	// ErrUnknownKey means that none of the given keys is the key that the blob names.
	ErrUnknownKey = errors.New("sealed with another encryption key")
	// ErrAuthentication means that the key is right, but the blob was changed, or was sealed for another name or
	// cluster.
	ErrAuthentication = errors.New("does not belong to this name and cluster, or was altered")
)

// Seal encrypts one version of a secret. name is the secret's name in the cluster. rand is crypto/rand.Reader except in
// tests. Seal reads 12 bytes from it.
func Seal(key Key, cluster, name string, version uint64, plaintext []byte, rand io.Reader) ([]byte, error) {
	if key.IsZero() {
		return nil, errors.New("seal secret: no encryption key")
	}
	if len(plaintext) > MaxPlaintext {
		return nil, fmt.Errorf("seal secret: %d bytes, at most %d are allowed", len(plaintext), MaxPlaintext)
	}
	blob := make([]byte, 0, len(plaintext)+overhead)
	blob = append(blob, magic...)
	blob = append(blob, format)
	blob = append(blob, key.id[:]...)
	blob = binary.BigEndian.AppendUint64(blob, version)
	nonce := make([]byte, nonceSize)
	if _, err := io.ReadFull(rand, nonce); err != nil {
		return nil, fmt.Errorf("seal secret: read random bytes: %w", err)
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, fmt.Errorf("seal secret: %w", err)
	}
	data := additionalData(blob, cluster, name)
	blob = append(blob, nonce...)
	return aead.Seal(blob, nonce, plaintext, data), nil
}

// Open decrypts a blob that was sealed for this name in this cluster, and returns the secret and its version. The
// version is 0 for a blob of format 1. Open uses the key that the blob names.
func Open(keys []Key, cluster, name string, blob []byte) ([]byte, uint64, error) {
	id, err := KeyID(blob)
	if err != nil {
		return nil, 0, fmt.Errorf("open secret: %w", err)
	}
	key, err := pick(keys, id)
	if err != nil {
		return nil, 0, fmt.Errorf("open secret: %w", err)
	}
	aead, err := newAEAD(key)
	if err != nil {
		return nil, 0, fmt.Errorf("open secret: %w", err)
	}
	header := headerOf(blob)
	nonce, sealed := blob[len(header):len(header)+nonceSize], blob[len(header)+nonceSize:]
	plaintext, err := aead.Open(nil, nonce, sealed, additionalData(header, cluster, name))
	if err != nil {
		return nil, 0, fmt.Errorf("open secret: sealed with key %s: %w", id, ErrAuthentication)
	}
	return plaintext, Version(blob), nil
}

// headerOf returns the part of a valid blob before the nonce.
func headerOf(blob []byte) []byte { return blob[:sizeOfHeader(blob[len(magic)])] }

func sizeOfHeader(format byte) int {
	if format == 1 {
		return idEnd
	}
	return headerSize
}

// Version returns the version of the secret that a blob claims, or 0 for a blob of format 1 and for data that is not a
// blob. Only [Open] proves that the version is true.
func Version(blob []byte) uint64 {
	if _, err := KeyID(blob); err != nil || len(headerOf(blob)) < headerSize {
		return 0
	}
	return binary.BigEndian.Uint64(blob[idEnd:headerSize])
}

// KeyID returns the ID of the key that sealed a blob. It checks the blob's format, and needs no key.
func KeyID(blob []byte) (ID, error) {
	if len(blob) < len(magic)+1 || string(blob[:len(magic)]) != magic {
		return ID{}, fmt.Errorf("%w: it does not begin with %s", ErrFormat, magic)
	}
	switch v := blob[len(magic)]; {
	case v > format:
		return ID{}, fmt.Errorf("format %d, the newest known is %d: %w", v, format, ErrNewer)
	case v == 0:
		return ID{}, fmt.Errorf("%w: format %d", ErrFormat, v)
	case len(blob) < sizeOfHeader(v)+nonceSize+tagSize:
		return ID{}, fmt.Errorf("%w: %d bytes, it was cut off", ErrFormat, len(blob))
	case len(blob) > MaxPlaintext+overhead:
		return ID{}, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrFormat, len(blob), MaxPlaintext+overhead)
	}
	return ID(blob[len(magic)+1 : idEnd]), nil
}

func pick(keys []Key, id ID) (Key, error) {
	known := make([]string, 0, len(keys))
	for _, key := range keys {
		if key.IsZero() {
			continue
		}
		if key.id == id {
			return key, nil
		}
		known = append(known, key.id.String())
	}
	if len(known) == 0 {
		known = append(known, "none")
	}
	return Key{}, fmt.Errorf("%w: sealed with key %s, known: %s", ErrUnknownKey, id, strings.Join(known, ", "))
}

func newAEAD(key Key) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key.secret()[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// additionalData returns different bytes for every different combination of header, cluster and name.
func additionalData(header []byte, cluster, name string) []byte {
	data := append([]byte(nil), header...)
	for _, part := range []string{cluster, name} {
		data = binary.BigEndian.AppendUint32(data, uint32(len(part)))
		data = append(data, part...)
	}
	return data
}

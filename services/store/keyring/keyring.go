// Package keyring reads encryption keys from the sources in the configuration.
//
// Invariant: a [Ring] holds only keys of exactly 32 bytes, and no error quotes the data that was read.
package keyring

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/envelope"
	"github.com/nstance-kit/nstance/services/contract/pasted"
)

// maxSource is the maximum number of bytes to read from a file. It is much more than any encoding of a key needs.
const maxSource = 4096

// Ring holds the keys of a cluster. The key Current seals and opens secrets. The keys in Old only open them. The zero
// Ring has no keys.
type Ring struct {
	Current envelope.Key
	Old     []envelope.Key
	// IsText means that the current key is a text of 32 printable characters, not 32 random bytes. A text that a person
	// chose can be guessed.
	IsText bool
}

// Keys returns all keys that can open blobs, starting with the current key.
func (r Ring) Keys() []envelope.Key {
	if r.Current.IsZero() {
		return r.Old
	}
	return append([]envelope.Key{r.Current}, r.Old...)
}

// Source reads encryption keys from one kind of place, such as files.
type Source struct {
	// Name is the value of the field "provider" in a [config.KeySource].
	Name string
	// Read reads the bytes of a key. Its errors must not quote those bytes. If the source refuses access, the error
	// matches [ErrDenied] or fs.ErrPermission.
	Read func(ctx context.Context, source config.KeySource) ([]byte, error)
}

// Sources returns the sources that need no SDK. The package keyring/all adds the sources of the clouds.
func Sources() []Source {
	return []Source{{Name: config.EnvKeySource, Read: readEnv}, {Name: config.FileKeySource, Read: readFile}}
}

// Names returns the names of sources.
func Names(sources []Source) []string {
	var names []string
	for _, source := range sources {
		names = append(names, source.Name)
	}
	return names
}

// ErrDenied means that the source of a key refuses to be read. The key may exist.
var ErrDenied = errors.New("reading the key is not permitted")

// Load reads the current key and the old keys. Without an encryption_key it returns a Ring without a current key, which
// cannot seal. Load fails if it cannot read a source: without an old key, the secrets sealed with that key would seem
// to be lost. The error reports all failed sources.
func Load(ctx context.Context, secrets config.Secrets, sources []Source) (Ring, error) {
	var ring Ring
	var errs []error
	if secrets.EncryptionKey != nil {
		key, text, err := read(ctx, *secrets.EncryptionKey, sources)
		if err != nil {
			errs = append(errs, fmt.Errorf("encryption_key: %w", err))
		}
		ring.Current, ring.IsText = key, text
	}
	for i, source := range secrets.OldEncryptionKeys {
		key, _, err := read(ctx, source, sources)
		if err != nil {
			errs = append(errs, fmt.Errorf("old_encryption_keys[%d]: %w", i, err))
			continue
		}
		if !slices.ContainsFunc(ring.Keys(), key.Equal) {
			ring.Old = append(ring.Old, key)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Ring{}, err
	}
	return ring, nil
}

// read reads a key. text means that it is a text of printable characters.
func read(ctx context.Context, source config.KeySource, sources []Source) (key envelope.Key, text bool, err error) {
	if source.Provider == config.EnvKeySource {
		source.Source = cmp.Or(source.Source, config.DefaultKeyVariable)
	}
	from := fmt.Sprintf("%s %q", source.Provider, source.Source)
	i := slices.IndexFunc(sources, func(s Source) bool { return s.Name == source.Provider })
	if i < 0 {
		return envelope.Key{}, false, fmt.Errorf("read key from %s: this program has no such provider", from)
	}
	data, err := sources[i].Read(ctx, source)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: %w", ErrDenied, err)
	}
	if err != nil {
		return envelope.Key{}, false, fmt.Errorf("read key from %s: %w", from, err)
	}
	key, err = Parse(data)
	if err != nil {
		return envelope.Key{}, false, fmt.Errorf("read key from %s: %w", from, err)
	}
	raw := withoutLineEnd(data)
	text = len(raw) == envelope.KeySize && !strings.ContainsFunc(raw, func(r rune) bool { return r < ' ' || r > '~' })
	return key, text, nil
}

// Parse parses a key. The length determines the encoding: 32 bytes are the raw key, and 43 or 44 characters are its
// base64, with or without padding, in the standard or the URL alphabet. Parse ignores one line break after a raw key,
// and all white space around base64. But 32 bytes are always a raw key, even if they end in a line break.
func Parse(data []byte) (envelope.Key, error) {
	text := withoutLineEnd(data)
	if len(text) == envelope.KeySize {
		return envelope.NewKey([]byte(text))
	}
	text = pasted.Clean(text)
	switch len(text) {
	case base64.RawStdEncoding.EncodedLen(envelope.KeySize), base64.StdEncoding.EncodedLen(envelope.KeySize):
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding,
			base64.RawURLEncoding} {
			key, err := encoding.Strict().DecodeString(text)
			// The decoder skips line breaks, so they are checked separately.
			if err == nil && len(key) == envelope.KeySize && !strings.ContainsAny(text, "\r\n") {
				return envelope.NewKey(key)
			}
		}
		return envelope.Key{}, fmt.Errorf("%d characters, but not the base64 of 32 bytes", len(text))
	}
	return envelope.Key{}, fmt.Errorf("%d bytes, want 32 raw bytes or their base64, which has 43 or 44 characters",
		len(text))
}

// withoutLineEnd removes one line break from the end of data that are not exactly a raw key.
func withoutLineEnd(data []byte) string {
	text := string(data)
	if len(text) == envelope.KeySize {
		return text
	}
	return strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
}

func readEnv(_ context.Context, source config.KeySource) ([]byte, error) {
	value, ok := os.LookupEnv(source.Source)
	switch {
	case !ok:
		return nil, errors.New("the variable is not set")
	case value == "":
		return nil, errors.New("the variable is empty")
	}
	return []byte(value), nil
}

func readFile(_ context.Context, source config.KeySource) (data []byte, err error) {
	if source.Source == "" {
		return nil, errors.New("no file is named")
	}
	file, err := os.Open(source.Source)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data, err = io.ReadAll(io.LimitReader(file, maxSource+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSource {
		return nil, fmt.Errorf("the file has more than %d bytes", maxSource)
	}
	return data, nil
}

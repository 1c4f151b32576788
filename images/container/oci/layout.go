package oci

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Write writes an image layout with one index
// (https://github.com/opencontainers/image-spec/blob/main/image-layout.md). It replaces an existing image layout and
// refuses to replace anything else.
func Write(dir string, index v1.ImageIndex) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
			return fmt.Errorf("%s is there and is no image layout", dir)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	if err := path.AppendIndex(index); err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	return nil
}

// Push pushes an index to a registry. reference is the name of the image, including the registry. Push uses the
// registry credentials that the container tools have stored.
func Push(ctx context.Context, reference string, insecure bool, index v1.ImageIndex) error {
	named, err := Reference(reference, insecure)
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(named, index, Credentials(ctx)...); err != nil {
		return fmt.Errorf("push %s: %w", reference, err)
	}
	return nil
}

// Reference parses the name of an image. insecure permits plain HTTP.
func Reference(text string, insecure bool) (name.Reference, error) {
	options := []name.Option{}
	if insecure {
		options = append(options, name.Insecure)
	}
	reference, err := name.ParseReference(text, options...)
	if err != nil {
		return nil, fmt.Errorf("name to push: %w", err)
	}
	return reference, nil
}

// Credentials returns options for calls to a registry. With them, the calls use the credentials that the container
// tools have stored.
func Credentials(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

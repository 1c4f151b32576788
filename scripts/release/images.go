package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/nstance-kit/nstance/images/container/oci"
)

// images writes an OCI archive of each image, with all architectures, and pushes the images if -push is set.
func (r *release) images(ctx context.Context) error {
	license, err := os.ReadFile(filepath.Join(r.Root, "LICENSE"))
	if err != nil {
		return err
	}
	if len(r.architectures()) == 0 {
		return nil
	}
	for _, program := range imagePrograms {
		spec := oci.Spec{Program: program, Version: r.Number, Revision: r.Revision, Created: r.Created,
			License: license}
		for _, architecture := range r.architectures() {
			spec.Binaries = append(spec.Binaries, oci.Binary{Architecture: architecture,
				Path: r.binary(program, "linux/"+architecture)})
		}
		index, err := oci.Index(spec)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		reference := r.Registry + "/" + program + ":" + r.Number
		if r.Push {
			if err := oci.Push(ctx, reference, r.Insecure, index); err != nil {
				return err
			}
		}
		digest, err := index.Digest()
		if err != nil {
			return err
		}
		r.digests = append(r.digests, subject{Name: reference, Digest: map[string]string{"sha256": digest.Hex}})
		if err := r.writeLayout(program+"_"+r.Number+"_oci.tar", index); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return nil
}

// writeLayout writes an archive of an image layout with one image or index. Container tools can import the archive.
func (r *release) writeLayout(name string, content mutate.Appendable) error {
	dir := filepath.Join(r.Work, name+".layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.Number})
	switch content := content.(type) {
	case v1.ImageIndex:
		err = path.AppendIndex(content, named)
	case v1.Image:
		err = path.AppendImage(content, named)
	}
	if err != nil {
		return err
	}
	var entries []entry
	err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		entries = append(entries, entry{filepath.ToSlash(relative), 0o644, content})
		return err
	})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := writeTar(tar.NewWriter(&out), r.Created, entries); err != nil {
		return err
	}
	return r.write(name, out.Bytes())
}

package receiver

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/internal/agent/folder"
)

const (
	maxFile  = 1 << 20  // bytes
	maxBatch = 32 << 20 // bytes
	maxFiles = 512
)

// DefaultExtensions returns the extensions that every receiver accepts.
func DefaultExtensions() []string { return []string{".crt", ".key", ".pub", ".json", ".env"} }

// Batch collects the files of one stream until their commit. The zero value is not usable. See [Receiver.NewBatch].
type Batch struct {
	extensions []string
	files      map[string][]byte
	refused    map[string]string // reasons of refusals, by name
	size       int
}

// NewBatch returns an empty batch.
func (r *Receiver) NewBatch() *Batch {
	return &Batch{extensions: r.extensions, files: map[string][]byte{}, refused: map[string]string{}}
}

// Add checks a file and adds it to the batch. It records the reason if it refuses the file. Of two files with the same
// name, the last one counts.
func (b *Batch) Add(file *nstancev1.File) {
	name := file.GetName()
	b.size -= len(b.files[name])
	delete(b.files, name)
	delete(b.refused, name)
	if err := b.check(file); err != nil {
		if len(b.refused) < maxFiles {
			b.refused[cmp.Or(folder.Clip(name, folder.MaxReportedName), "(no name)")] = err.Error()
		}
		return
	}
	b.files[name] = file.GetContent()
	b.size += len(file.GetContent())
}

func (b *Batch) check(file *nstancev1.File) error {
	if err := b.checkName(file.GetName()); err != nil {
		return err
	}
	size := len(file.GetContent())
	switch {
	case size > maxFile:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", size, maxFile)
	case len(b.files) >= maxFiles:
		return fmt.Errorf("there are more than %d files at once", maxFiles)
	case b.size+size > maxBatch:
		return fmt.Errorf("there are more than %d bytes at once", maxBatch)
	}
	return checkContent(file.GetName(), file.GetKind(), file.GetContent())
}

func (b *Batch) checkName(name string) error {
	if err := folder.ValidateName(name); err != nil {
		return err
	}
	if !slices.Contains(b.extensions, path.Ext(name)) {
		return fmt.Errorf("its extension %q is not among %v; NSTANCE_RECV_EXTENSIONS adds more", path.Ext(name),
			b.extensions)
	}
	return nil
}

package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailscale/hujson"
)

// Bundle collects the documents for a support report. [Bundle.Files] redacts them.
type Bundle struct {
	// About says which program made the bundle, when, and for which cluster. The bundle does not redact these values.
	About []Fact

	documents []document
	unread    []unread
}

// Fact is a named value.
type Fact struct{ Name, Value string }

// unread is something that the bundle lacks, and why.
type unread struct{ what, why string }

type document struct {
	path, about string
	shape       shape
	tree        any
	metrics     string // of a document without a shape
}

// File is a file of the bundle.
type File struct {
	Path string
	// About says what the file holds.
	About   string
	Content []byte
}

// neverHeld lists what a bundle never holds.
var neverHeld = []string{
	"secrets, keys, certificates, nonces and operators: their objects are listed by name and were not read",
	"values of args, vars, provider options and environment variables; boot scripts; contents of files",
	"commands and paths of health checks; comments of configurations; unknown fields",
	"consoles of servers and their logs",
	"words of errors and alerts that Nstance itself does not use",
}

// Add adds a document. The tags of its type say what the bundle shows of it.
func (b *Bundle) Add(path, about string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return b.add(path, about, shapeOf(reflect.TypeOf(v)), body)
}

// AddJSON adds a document with the type T in JSON, which may have comments.
func AddJSON[T any](b *Bundle, path, about string, body []byte) error {
	body, err := hujson.Standardize(slices.Clone(body))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return b.add(path, about, shapeOf(reflect.TypeFor[T]()), body)
}

func (b *Bundle) add(path, about string, s shape, body []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	b.documents = append(b.documents, document{path: path, about: about, shape: s, tree: tree})
	return nil
}

// Shown returns what a bundle shows of a document with the type T in JSON, on one line.
func Shown[T any](body []byte) string {
	var b Bundle
	if AddJSON[T](&b, "", "", body) != nil {
		return hidden
	}
	text, _ := json.Marshal(newRedactor().redact(b.documents[0].shape, b.documents[0].tree)) // of texts and numbers
	return string(text)
}

// AddMetrics adds metrics in the text format of Prometheus.
func (b *Bundle) AddMetrics(path, about, text string) {
	b.documents = append(b.documents, document{path: path, about: about, metrics: text})
}

// NoteUnread records what could not be read, and why.
func (b *Bundle) NoteUnread(what string, why error) {
	b.unread = append(b.unread, unread{what, why.Error()})
}

// Files returns the redacted files. The first is a README that lists them, and what could not be read.
func (b *Bundle) Files() ([]File, error) {
	r := newRedactor()
	for _, d := range b.documents {
		r.learn(d.shape, d.tree)
	}
	for _, fact := range b.About {
		r.names[fact.Value] = true
	}
	var files []File
	for _, d := range b.documents {
		content := []byte(shownMetrics(d.metrics))
		if d.shape != nil {
			var err error
			if content, err = encode(r.redact(d.shape, d.tree)); err != nil {
				return nil, fmt.Errorf("encode %s: %w", d.path, err)
			}
		}
		files = append(files, File{d.path, d.about, content})
	}
	return slices.Insert(files, 0, File{"README.txt", "this list", b.readme(r, files)}), nil
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return out.Bytes(), err
}

func (b *Bundle) readme(r *redactor, files []File) []byte {
	var out strings.Builder
	out.WriteString("Support bundle of nstance-admin. Read it before you send it.\n\n")
	for _, fact := range b.About {
		if value, _ := showPlain(nil, fact.Value).(string); value != "" {
			fmt.Fprintf(&out, "%s: %s\n", fact.Name, value)
		}
	}
	out.WriteString("\nContent:\n")
	for _, f := range files {
		fmt.Fprintf(&out, "  %s: %s\n", f.Path, f.About)
	}
	out.WriteString("\nNot read:\n")
	for _, u := range b.unread {
		fmt.Fprintf(&out, "  %s: %s\n", r.wordsOf(u.what), strings.ReplaceAll(r.wordsOf(u.why), "\n", "\n    "))
	}
	if len(b.unread) == 0 {
		out.WriteString("  nothing\n")
	}
	out.WriteString("\nLeft out, or shown as " + hidden + ":\n")
	for _, text := range neverHeld {
		fmt.Fprintf(&out, "  %s\n", text)
	}
	return []byte(out.String())
}

var (
	metricLine  = regexp.MustCompile(`^((?:nstance|go|process)_[a-zA-Z0-9_]+)(?:\{(.*)\})? ([0-9.eE+-]+|NaN|[+-]Inf)$`)
	metricLabel = regexp.MustCompile(`^([a-z_]+)="([A-Za-z0-9 ._:/+-]{0,64})"(?:,|$)`)
)

// shownMetrics returns the lines of a text that are about metrics of Nstance and of the Go runtime.
func shownMetrics(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		match := metricLine.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		labels := match[2]
		for labels != "" {
			label := metricLabel.FindString(labels)
			if label == "" {
				break
			}
			labels = labels[len(label):]
		}
		if labels == "" {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// Write writes files as a tar archive with gzip, in one directory.
func Write(w io.Writer, dir string, files []File, at time.Time) error {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	for _, f := range files {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: dir + "/" + f.Path, Mode: 0o600, Size: int64(len(f.Content)),
			ModTime: at.UTC().Truncate(time.Second)}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(f.Content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return zip.Close()
}

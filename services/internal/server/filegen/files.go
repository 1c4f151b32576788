package filegen

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/contract/render"
)

// MaxFile is the largest file that an agent accepts, in bytes.
const MaxFile = 1 << 20

// The algorithms of key pairs, as in the shard configuration.
const (
	Ed25519   = "ed25519"
	ECDSAP256 = "ecdsa-p256"
)

// KeyRequest asks the agent for a key pair. Name is the file name of the public key.
type KeyRequest struct{ Name, Algorithm string }

// Have describes a file that the instance has.
type Have struct {
	SHA256              string // hexadecimal
	Error               string // why the file is not stored correctly; empty: it is
	NotBefore, NotAfter time.Time
	// Basis is the [File.Basis] that this file had when it was sent to the agent. Basis is empty if the server no
	// longer knows that value.
	Basis string
}

// Input is one instance with its files and keys.
type Input struct {
	Group   config.Group
	Record  record.Instance
	Address Address
	// Claimed is what the agent last reported about its machine. Only the content of files may use it.
	Claimed render.Claimed
	// Have are the files on the instance. RuntimeHash is the hash of their configuration. Both are from the agent's
	// report.
	Have        map[string]Have
	RuntimeHash string
	// Keys are the public keys that the agent submitted (PKIX, DER), by name.
	Keys map[string][]byte
	// KeySums are the hexadecimal SHA-256 sums of the public keys that the agent reported, by name of the key. KeySums
	// is nil if no sums are known.
	KeySums map[string]string
}

// File is one file to send.
type File struct {
	Name, Kind string
	Content    []byte
	SHA256     string // of Content, hexadecimal
	// Basis identifies the input of a certificate: template, instance, and key. For files of other kinds, Basis is
	// empty.
	Basis string
	// NotBefore and NotAfter are set for certificates only.
	NotBefore, NotAfter time.Time
}

// Result describes what an instance lacks.
type Result struct {
	// Files are the files to send, sorted by name. The instance lacks them, failed to store them, or has them with
	// other content.
	Files []File
	// Names are the names of all files that belong to the instance, sorted.
	Names []string
	// Sums are the SHA-256 sums (hexadecimal) of all files that the instance has after it has stored Files, by name.
	Sums map[string]string
	// Hash is the runtime hash that the instance has after it has stored Files. It is empty while a file is missing.
	Hash string
	// Missing are the keys without which certificates cannot be issued.
	Missing []KeyRequest
	// Issued describes the certificates among Files, for the certificate log.
	Issued []record.Issued
	// RenewAt is the earliest time at which a certificate must be renewed. Zero means never.
	RenewAt time.Time
}

// fileSet is a group's compiled runtime configuration.
type fileSet struct {
	files []compiledFile // sorted by name
	names []string
	keys  []KeyRequest // sorted by name
}

type compiledFile struct {
	name string
	config.File
	text *render.Template // of Source (storage) or Content (string)
	cert *certificate
	key  KeyRequest
}

// certificate is a compiled certificate template.
type certificate struct {
	kind string
	ttl  time.Duration
	cn   *render.Template
	// lists holds the templates of the certificate's fields that have several values, in the order in which
	// compileCertificate compiles them.
	lists [9][]*render.Template
}

// Keys returns the key pairs that a group's instances need, sorted by name.
func (g *Generator) Keys(group config.Group) ([]KeyRequest, error) {
	shard := g.shard.Load()
	if shard == nil {
		return nil, errUnconfigured
	}
	set, err := g.fileSet(shard, &group)
	if err != nil {
		return nil, err
	}
	return set.keys, nil
}

func (g *Generator) fileSet(shard *Shard, group *config.Group) (*fileSet, error) {
	return remembered(&g.mu, g.files, group.RuntimeHash, func() (*fileSet, error) {
		set := &fileSet{names: slices.Sorted(maps.Keys(group.Files))}
		requests := map[string]KeyRequest{}
		for _, name := range set.names {
			file := compiledFile{name: name, File: group.Files[name]}
			var err error
			switch file.Kind {
			case "certificate":
				template := group.CertificateOf(file.Template, shard.Certificates)
				if template.Kind == "" || file.Key == nil {
					err = fmt.Errorf("there is no certificate template %q, or no key", file.Template)
					break
				}
				file.key = KeyRequest{Name: file.Key.Name, Algorithm: cmp.Or(file.Key.Algorithm, Ed25519)}
				requests[file.key.Name] = file.key
				file.cert, err = compileCertificate(file.Template, template)
			case "storage":
				file.text, err = render.Compile(name, file.Source)
			case "string":
				file.text, err = render.CompileFile(name, file.Content)
			}
			if err != nil {
				return nil, fmt.Errorf("file %s: %w", name, err)
			}
			set.files = append(set.files, file)
		}
		for _, name := range slices.Sorted(maps.Keys(requests)) {
			set.keys = append(set.keys, requests[name])
		}
		return set, nil
	})
}

func compileCertificate(name string, template config.Certificate) (*certificate, error) {
	c := &certificate{kind: template.Kind, ttl: time.Duration(template.TTL) * time.Hour}
	var err error
	if c.cn, err = render.Compile(name+".cn", template.CN); err != nil {
		return nil, err
	}
	for i, list := range [...][]string{template.Organization, template.Country, template.Province, template.Locality,
		template.Street,
		template.PostalCode, template.DNS, template.IP, template.URI} {
		for _, text := range list {
			compiled, err := render.Compile(name, text)
			if err != nil {
				return nil, err
			}
			c.lists[i] = append(c.lists[i], compiled)
		}
	}
	return c, nil
}

// spec renders a certificate template for an instance. It does not set the public key.
func (c *certificate) spec(d render.Data) (authority.InstanceSpec, error) {
	spec := authority.InstanceSpec{Kind: c.kind, TTL: c.ttl}
	var err error
	if spec.CommonName, err = c.cn.Execute(d); err != nil {
		return spec, err
	}
	for i, to := range [...]*[]string{&spec.Organization, &spec.Country, &spec.Province, &spec.Locality, &spec.Street,
		&spec.PostalCode,
		&spec.DNS, &spec.IP, &spec.URI} {
		for _, template := range c.lists[i] {
			text, err := template.Execute(d)
			if err != nil {
				return spec, err
			}
			*to = append(*to, text)
		}
	}
	return spec, nil
}

// Generate generates what an instance lacks. If the error is not nil, the Result holds the files that could be
// generated, and no hash.
func (g *Generator) Generate(ctx context.Context, in Input) (Result, error) {
	shard := g.shard.Load()
	if shard == nil {
		return Result{}, errUnconfigured
	}
	set, err := g.fileSet(shard, &in.Group)
	if err != nil {
		return Result{}, err
	}
	run := generation{g: g, in: &in, data: data(shard, &in.Group, &in.Record, in.Address),
		result: Result{Names: set.names, Sums: make(map[string]string, len(set.names))}}
	run.data.Claimed = in.Claimed
	// Older templates, from before the first workload CAs, put only CACert into their trust files. So CACert contains
	// the cluster's CA and also the workload CAs when files are rendered.
	run.data.Cluster.CACert += run.data.Cluster.WorkloadCACert
	var errs []error
	for i := range set.files {
		if err := run.file(ctx, &set.files[i]); err != nil {
			errs = append(errs, fmt.Errorf("file %s: %w", set.files[i].name, err))
		}
	}
	if len(errs) == 0 && len(run.result.Missing) == 0 {
		run.result.Hash = in.Group.RuntimeHash
	}
	return run.result, errors.Join(errs...)
}

type generation struct {
	g      *Generator
	in     *Input
	data   render.Data
	result Result
}

func (r *generation) file(ctx context.Context, file *compiledFile) error {
	var content []byte
	var err error
	switch file.Kind {
	case "certificate":
		return r.certificate(file)
	case "secret":
		content, err = r.g.Secret(ctx, file.Source)
	case "storage":
		var key string
		if key, err = file.text.Execute(r.data); err == nil {
			content, err = r.g.object(ctx, key, age{})
		}
	case "env":
		content, err = render.Env(file.name, file.Vars, r.data)
	case "json":
		content, err = render.JSON(file.name, file.JSON, r.data)
	case "string":
		var text string
		text, err = file.text.Execute(r.data)
		content = []byte(text)
	default:
		err = fmt.Errorf("kind %q is unknown", file.Kind)
	}
	if err != nil {
		return err
	}
	if len(content) > MaxFile {
		return fmt.Errorf("%d bytes, at most %d are allowed", len(content), MaxFile)
	}
	out := File{Name: file.name, Kind: file.Kind, Content: content, SHA256: Sum(content)}
	r.result.Sums[file.name] = out.SHA256
	if have, ok := r.in.Have[file.name]; !ok || have.Error != "" || have.SHA256 != out.SHA256 {
		r.result.Files = append(r.result.Files, out)
	}
	return nil
}

// certificate issues a certificate unless the instance already has a good one. A good certificate has these properties:
//
//   - The agent stored it without an error.
//   - It is in the first two thirds of its life.
//   - It is for the agent's current key.
//   - It was issued from the same template and data.
func (r *generation) certificate(file *compiledFile) error {
	spec, err := file.cert.spec(r.data)
	if err != nil {
		return err
	}
	pkix := r.key(file.key)
	now := r.g.options.Now()
	have, there := r.in.Have[file.name]
	due := Due(have.NotBefore, have.NotAfter)
	if there && have.Error == "" && !have.NotAfter.IsZero() && now.Before(due) &&
		(pkix != nil || r.keyIsThere(file.key.Name)) {
		same := have.Basis == "" && r.in.RuntimeHash == r.in.Group.RuntimeHash
		if pkix != nil && have.Basis != "" {
			same = have.Basis == basis(&spec, pkix)
		}
		if same {
			r.result.Sums[file.name] = have.SHA256
			r.renewAt(due)
			return nil
		}
	}
	if pkix == nil {
		if !slices.Contains(r.result.Missing, file.key) {
			r.result.Missing = append(r.result.Missing, file.key)
		}
		return nil
	}
	if spec.PublicKey, err = authority.ParsePublicKey(pkix); err != nil {
		return err
	}
	from := basis(&spec, pkix)
	// Limit the lifetime only after the basis was computed. Former versions had no limit. If the basis contained the
	// limited lifetime, every certificate from a former version with a longer lifetime would be replaced.
	spec.TTL = min(spec.TTL, config.MaxCertificateTTL)
	ca := r.g.options.WorkloadCAs.At(now, r.g.options.CA)
	cert, err := ca.IssueInstance(spec, r.g.options.Rand, now)
	if err != nil {
		return err
	}
	content := authority.EncodeCertificate(cert)
	r.result.Sums[file.name] = Sum(content)
	r.result.Files = append(r.result.Files, File{Name: file.name, Kind: file.Kind, Content: content,
		SHA256: Sum(content), Basis: from, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter})
	kind := record.CertClient
	if file.cert.kind == authority.KindServer {
		kind = record.CertServer
	}
	r.result.Issued = append(r.result.Issued, record.Issued{Name: file.name, Kind: kind, Serial: authority.Serial(cert),
		NotAfter: cert.NotAfter})
	r.renewAt(Due(cert.NotBefore, cert.NotAfter))
	return nil
}

func (r *generation) renewAt(due time.Time) {
	if r.result.RenewAt.IsZero() || due.Before(r.result.RenewAt) {
		r.result.RenewAt = due
	}
}

// key returns the public key that the agent submitted. It returns nil if the key's algorithm is wrong, or if the agent
// has since generated another key.
func (r *generation) key(want KeyRequest) []byte {
	pkix := r.in.Keys[want.Name]
	if pkix == nil || CheckKey(pkix, want.Algorithm) != nil {
		return nil
	}
	if reported, ok := r.in.KeySums[want.Name]; ok && reported != Sum(pkix) {
		return nil
	}
	return pkix
}

// keyIsThere reports whether the agent has the named key pair. It also returns true if the agent's keys are not known.
func (r *generation) keyIsThere(name string) bool {
	return r.in.KeySums == nil || r.in.KeySums[name] != ""
}

// Due returns the time to renew a certificate, which is after two thirds of its life.
func Due(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) / 3 * 2)
}

// CheckKey checks that a public key (PKIX, DER) has the given algorithm.
func CheckKey(pkix []byte, algorithm string) error {
	key, err := authority.ParsePublicKey(pkix)
	if err != nil {
		return err
	}
	have := "another algorithm"
	switch key.(type) {
	case ed25519.PublicKey:
		have = Ed25519
	case *ecdsa.PublicKey:
		have = ECDSAP256
	}
	if have != algorithm {
		return fmt.Errorf("public key is of %s, not of %s", have, algorithm)
	}
	return nil
}

// basis returns the hash that identifies the input of a certificate.
func basis(spec *authority.InstanceSpec, pkix []byte) string {
	plain := *spec
	plain.PublicKey = nil
	text, err := json.Marshal(plain)
	if err != nil { // cannot happen: the value holds only texts and a number
		return ""
	}
	return Sum(bytes.Join([][]byte{text, pkix}, []byte{0}))[:32]
}

// Sum returns the SHA-256 of a content in hex.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

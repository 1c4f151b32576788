package clusterstate

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/keys"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// trust holds the CAs that verify the signed documents of the cluster. Its root is the CA in `ca.key`. That secret is
// sealed or kept in a secrets service, so a writer of the bucket can neither read nor forge the CA.
type trust struct {
	// ca signs new documents. It is zero in a cluster without a CA.
	ca authority.CA
	// bundle holds the CA certificates of `ca.crt`, newest first. ca signed it.
	bundle []*x509.Certificate
	// version is the version of `ca.crt`. It is 0 if `ca.crt` is missing or unsigned.
	version uint64
	// wasSigned means that this process has seen a signed `ca.crt`.
	wasSigned bool
	token     objstore.Token
}

// signed reports whether every operator record is signed, so that an unsigned one is a forgery. An upgrade from a
// version without signatures signs `ca.crt` last, so a signed `ca.crt` shows that the records are signed.
func (t trust) signed() bool { return t.version > 0 || t.wasSigned || t.mustSign() }

// mustSign reports whether every document of the cluster was signed from the beginning.
func (t trust) mustSign() bool { return !t.ca.IsZero() && t.ca.SignsDocuments() }

// readTrust reads the CA and `ca.crt`, and remembers them.
func (s *State) readTrust(ctx context.Context) (trust, error) {
	if s.options.Secrets == nil {
		return trust{}, errors.New("signed documents need the cluster's secrets, and this program did not open them")
	}
	ca, err := s.LoadCA(ctx)
	if errors.Is(err, secretstore.ErrNotFound) {
		if known := s.known.Load(); known != nil {
			return trust{}, err // the CA was there before
		}
		return trust{}, nil
	}
	if err != nil {
		return trust{}, err
	}
	return s.readBundle(ctx, ca)
}

// readBundle reads `ca.crt`. If `ca.crt` is missing, the bundle contains only the certificate of ca.
func (s *State) readBundle(ctx context.Context, ca authority.CA) (trust, error) {
	t := trust{ca: ca, bundle: []*x509.Certificate{ca.Certificate()}}
	before := s.options.Marks.Highest(keys.ClusterCA())
	object, err := s.options.Cluster.Get(ctx, keys.ClusterCA())
	if err == nil {
		t.token = object.Token
		t.bundle, t.version, err = s.openBundle(ca, object.Body)
		if err == nil {
			err = s.options.Marks.Observe(keys.ClusterCA(), before, t.version)
		}
	} else if errors.Is(err, objstore.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return trust{}, fmt.Errorf("read CA bundle: %w", err)
	}
	t.wasSigned = s.options.Marks.Highest(keys.ClusterCA()) > 0
	s.known.Store(&t)
	return t, nil
}

// openBundle verifies `ca.crt` with the certificate of ca. A bundle that an older version of Nstance wrote has no
// signature. It is accepted if it holds exactly the certificate of ca, because then it adds no trust.
func (s *State) openBundle(ca authority.CA, data []byte) ([]*x509.Certificate, uint64, error) {
	own := []*x509.Certificate{ca.Certificate()}
	doc, err := authority.OpenDocument(own, s.options.ClusterID, keys.ClusterCA(), data)
	former := errors.Is(err, authority.ErrUnsigned) && !ca.SignsDocuments()
	if former {
		doc.Content, err = data, nil
	}
	if err != nil {
		return nil, 0, err
	}
	certs, err := authority.ParseBundle(doc.Content)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", keys.ClusterCA(), err)
	}
	switch {
	case !slices.ContainsFunc(certs, ca.Certificate().Equal):
		return nil, 0, fmt.Errorf("%s does not hold the certificate of %s: %w", keys.ClusterCA(), secretstore.CAKey,
			ErrForeign)
	case former && len(certs) > 1:
		return nil, 0, fmt.Errorf("%s holds %d certificates: %w", keys.ClusterCA(), len(certs), authority.ErrUnsigned)
	}
	return certs, doc.Version, nil
}

// trusted returns the trust that this process read last. If it has read none, or if the cluster has unsigned documents,
// trusted reads the trust now and returns fresh as true. Another process may sign unsigned documents at any time.
func (s *State) trusted(ctx context.Context) (t trust, fresh bool, err error) {
	if known := s.known.Load(); known != nil && known.signed() {
		return *known, false, nil
	}
	t, err = s.readTrust(ctx)
	return t, true, err
}

// acceptsUnsigned reports whether a document without a signature is accepted under a key.
func (t trust) acceptsUnsigned(key string) bool {
	if parsed, err := keys.Parse(key); err == nil && parsed.Kind == keys.KindApplied {
		// An applied configuration of an older version of Nstance is unsigned until the leader writes it again.
		return !t.mustSign()
	}
	return !t.signed()
}

// OpenDocument verifies data that was read under the key of a signed document, and returns the document's content.
func (s *State) OpenDocument(ctx context.Context, key string, data []byte) ([]byte, error) {
	doc, err := s.openDocument(ctx, key, data, s.options.Marks.Highest(key))
	return doc.Content, err
}

// openDocument verifies a document of the cluster. The CA may have changed since the trust was read, so openDocument
// reads it again before it refuses a document. The parameter before is the highest version of the document that this
// process had seen when it began to read data.
func (s *State) openDocument(ctx context.Context, key string, data []byte, before uint64) (authority.Document,
	error) {
	t, fresh, err := s.trusted(ctx)
	for err == nil {
		var doc authority.Document
		doc, err = authority.OpenDocument(t.bundle, s.options.ClusterID, key, data)
		if errors.Is(err, authority.ErrUnsigned) && t.acceptsUnsigned(key) {
			doc, err = authority.Document{Content: data}, nil
		}
		if err == nil {
			return doc, s.options.Marks.Observe(key, before, doc.Version)
		}
		if fresh {
			break
		}
		refused := err
		if t, err = s.readTrust(ctx); err != nil {
			return authority.Document{}, errors.Join(refused, err)
		}
		fresh = true
	}
	return authority.Document{}, err
}

// signDocument returns the content as a document that the cluster's CA has signed. If the cluster's documents are
// unsigned, it returns the content unchanged.
func (s *State) signDocument(ctx context.Context, key string, version uint64, content []byte) ([]byte, error) {
	t, _, err := s.trusted(ctx)
	if err != nil || !t.signed() {
		return content, err
	}
	return authority.SignDocument(authority.Document{Cluster: s.options.ClusterID, Key: key, Version: version,
		Content: content}, t.ca)
}

// putSigned writes a document with put, signed by the cluster's CA. If the cluster's documents are unsigned, it is
// written as it is.
func (s *State) putSigned(ctx context.Context, store objstore.Store, key string, version uint64, content []byte,
	token objstore.Token) (objstore.Token, error) {
	body, err := s.signDocument(ctx, key, version, content)
	if err != nil {
		return "", err
	}
	newToken, err := s.put(ctx, store, key, body, token)
	if err == nil && authority.IsSigned(body) {
		s.options.Marks.Raise(key, version)
	}
	return newToken, err
}

// Trust returns the value of authority.Trust for the CA and the bundle that this State read last. It returns "" if the
// State has read none.
func (s *State) Trust() string {
	if known := s.known.Load(); known != nil {
		return authority.Trust(known.ca.Certificate(), known.bundle)
	}
	return ""
}

// ReadCA reads the CA in `ca.key` and the bundle `ca.crt`, which that CA has signed. It returns the certificates newest
// first. The error matches objstore.ErrNotFound if there is no bundle yet, and also secretstore.ErrNotFound if there is
// no CA yet.
func (s *State) ReadCA(ctx context.Context) (_ authority.CA, _ []*x509.Certificate, err error) {
	defer explain(&err, "read CA bundle")
	t, err := s.readTrust(ctx)
	missing := fmt.Errorf("%s: %w", keys.ClusterCA(), objstore.ErrNotFound)
	switch {
	case err != nil:
		return authority.CA{}, nil, err
	case t.ca.IsZero():
		return authority.CA{}, nil, fmt.Errorf("%w: %w", secretstore.ErrNotFound, missing)
	case t.token == "":
		return authority.CA{}, nil, missing
	}
	return t.ca, t.bundle, nil
}

// CABundle reads `ca.crt` and verifies it with the CA in `ca.key`. It returns the certificates newest first. The error
// matches objstore.ErrNotFound if there is no `ca.crt` yet.
func (s *State) CABundle(ctx context.Context) ([]*x509.Certificate, error) {
	_, bundle, err := s.ReadCA(ctx)
	return bundle, err
}

// CABundleToken returns the token of the present version of `ca.crt`.
func (s *State) CABundleToken(ctx context.Context) (_ objstore.Token, err error) {
	defer explain(&err, "read CA bundle")
	object, err := s.options.Cluster.Get(ctx, keys.ClusterCA())
	return object.Token, err
}

// UnverifiedCABundle reads `ca.crt` without the CA's key. Anyone who can write to the bucket can forge the result.
func (s *State) UnverifiedCABundle(ctx context.Context) (bundle []*x509.Certificate, err error) {
	defer explain(&err, "read %s", keys.ClusterCA())
	bundle, _, err = read(ctx, s.options.Cluster, keys.ClusterCA(), orDamaged(unverified(authority.ParseBundle)))
	return bundle, err
}

// CABundleSignedBy reads `ca.crt` for a program that does not have the CA's key but knows CA certificates of the
// cluster. One of the known CAs must have signed `ca.crt`. If an older version of Nstance left `ca.crt` unsigned, it
// must hold exactly one certificate, and that must be one of the known certificates.
func (s *State) CABundleSignedBy(ctx context.Context, known []*x509.Certificate) (_ []*x509.Certificate, err error) {
	defer explain(&err, "read %s", keys.ClusterCA())
	object, err := s.options.Cluster.Get(ctx, keys.ClusterCA())
	if err != nil {
		return nil, err
	}
	doc, err := authority.OpenDocument(known, s.options.ClusterID, keys.ClusterCA(), object.Body)
	former := errors.Is(err, authority.ErrUnsigned)
	if former {
		doc.Content = object.Body
	} else if err != nil {
		return nil, err
	}
	certs, perr := orDamaged(authority.ParseBundle)(doc.Content)
	if perr != nil {
		return nil, perr
	}
	if former && (len(certs) != 1 || !slices.ContainsFunc(known, certs[0].Equal)) {
		return nil, err
	}
	return certs, nil
}

// WriteCABundle replaces `ca.crt`. Each of signers signs `ca.crt`, so that programs can verify it before and after one
// signer replaces another in `ca.key`. certs must contain the certificates of all signers. WriteCABundle returns
// objstore.ErrConflict if another program wrote `ca.crt` in the meantime.
func (s *State) WriteCABundle(ctx context.Context, signers []authority.CA, certs ...*x509.Certificate) (err error) {
	defer explain(&err, "write CA bundle")
	t, err := s.readTrust(ctx)
	if err != nil {
		return err
	}
	return s.writeBundle(ctx, t, signers, certs)
}

func (s *State) writeBundle(ctx context.Context, have trust, signers []authority.CA,
	certs []*x509.Certificate) (err error) {
	defer explain(&err, "write %s", keys.ClusterCA())
	for _, ca := range signers {
		if !slices.ContainsFunc(certs, ca.Certificate().Equal) {
			return fmt.Errorf("%s is missing: %w", ca, ErrForeign)
		}
	}
	// The version is at least the time in milliseconds since 1970, so that it rises even after ca.crt was lost.
	version := max(have.version+1, uint64(s.options.Now().UnixMilli()))
	body, err := authority.SignDocument(authority.Document{Cluster: s.options.ClusterID, Key: keys.ClusterCA(),
		Version: version, Content: authority.EncodeBundle(certs...)}, signers...)
	if err == nil {
		_, err = s.put(ctx, s.options.Cluster, keys.ClusterCA(), body, have.token)
	}
	if err == nil {
		_, err = s.readTrust(ctx)
	}
	return err
}

// ensureBundle writes `ca.crt` if it is missing or unsigned. Before it signs an unsigned `ca.crt`, it signs the
// operator records, because unsigned records are refused as soon as `ca.crt` is signed. A bundle without the CA is an
// error: its readers would not trust certificates of this CA.
func (s *State) ensureBundle(ctx context.Context, ca authority.CA) (trust, error) {
	for conflicts := (objstore.Conflicts{}); ; {
		t, err := s.readBundle(ctx, ca)
		if err != nil || t.version > 0 {
			return t, err
		}
		if t.token != "" {
			if err := s.SignDocuments(ctx); err != nil {
				return trust{}, err
			}
		}
		err = s.writeBundle(ctx, t, []authority.CA{ca}, t.bundle)
		if err != nil && !conflicts.Again(ctx, err) {
			return trust{}, err
		}
	}
}

// SignDocuments signs the operator records that the CA in `ca.key` has not signed. Another CA of the bundle may have
// signed them, or an older version of Nstance may have left them unsigned. An unsigned record that is no longer
// accepted is an error.
func (s *State) SignDocuments(ctx context.Context) (err error) {
	defer explain(&err, "sign documents")
	t, err := s.readTrust(ctx)
	if err != nil {
		return err
	}
	entries, err := s.options.Cluster.List(ctx, keys.OperatorPrefix())
	if err != nil {
		return err
	}
	_, err = load(ctx, s, len(entries), func(ctx context.Context, i int) (struct{}, error) {
		return struct{}{}, s.signOperator(ctx, t, entries[i].Key)
	})
	return err
}

func (s *State) signOperator(ctx context.Context, t trust, key string) error {
	for conflicts := (objstore.Conflicts{}); ; {
		before := s.options.Marks.Highest(key)
		object, err := s.options.Cluster.Get(ctx, key)
		if err != nil {
			return err
		}
		own := []*x509.Certificate{t.ca.Certificate()}
		if _, err := authority.OpenDocument(own, s.options.ClusterID, key, object.Body); err == nil {
			return nil
		}
		doc, err := s.openDocument(ctx, key, object.Body, before)
		if err != nil {
			return err
		}
		rec, err := record.Decode[record.Operator](doc.Content)
		if err != nil {
			return err
		}
		body, err := authority.SignDocument(authority.Document{Cluster: s.options.ClusterID, Key: key,
			Version: rec.Revision, Content: doc.Content}, t.ca)
		if err != nil {
			return err
		}
		_, err = s.put(ctx, s.options.Cluster, key, body, object.Token)
		if !conflicts.Again(ctx, err) {
			return err
		}
	}
}

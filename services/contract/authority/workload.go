package authority

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// WorkloadCAs are the CAs of a cluster's workloads, sorted by the time from which they issue certificates. While a new
// CA replaces the old one, there are two, and instances trust both.
type WorkloadCAs []CA

// At returns the CA that issues at the given time: the last one that has started. If none has started, At returns the
// given default.
func (w WorkloadCAs) At(now time.Time, otherwise CA) CA {
	for _, ca := range w {
		if !now.Before(ca.Starts()) {
			otherwise = ca
		}
	}
	return otherwise
}

// EncodeCertificates returns the certificates in PEM, without keys.
func (w WorkloadCAs) EncodeCertificates() []byte {
	var out []byte
	for _, ca := range w {
		out = append(out, EncodeCertificate(ca.Certificate())...)
	}
	return out
}

// MarshalSecret writes certificates and private keys as one PEM text, the content of the secret `workload-ca.key`.
// [ParseWorkloadCAs] reads it.
func (w WorkloadCAs) MarshalSecret() ([]byte, error) {
	var out [][]byte
	for _, ca := range w {
		secret, err := ca.MarshalSecret()
		if err != nil {
			return nil, err
		}
		out = append(out, secret)
	}
	return bytes.Join(out, nil), nil
}

// ParseWorkloadCAs reads what [WorkloadCAs.MarshalSecret] wrote. The error matches errForeign if a CA is not a workload
// CA of the cluster.
func ParseWorkloadCAs(secret []byte, cluster string, errForeign error) (w WorkloadCAs, err error) {
	fail := func(err error) (WorkloadCAs, error) { return nil, fmt.Errorf("parse workload CA: %w", err) }
	blocks, err := parsePEM(secret)
	if err != nil {
		return fail(err)
	}
	if len(blocks) != 2 && len(blocks) != 4 {
		return fail(errors.New("want one or two CAs, each with its certificate and its key"))
	}
	for ; len(blocks) > 0; blocks = blocks[2:] {
		ca, err := parseCABlocks(blocks[:2])
		if err != nil {
			return fail(err)
		}
		if err := ca.CheckWorkload(cluster); err != nil {
			return fail(fmt.Errorf("%w: %w", errForeign, err))
		}
		if n := len(w); n > 0 && !w[n-1].Starts().Before(ca.Starts()) {
			return fail(errors.New("the second CA does not start after the first"))
		}
		w = append(w, ca)
	}
	return w, nil
}

package objstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
)

// notSent is the type of ErrNotSent.
type notSent struct{}

func (notSent) Error() string { return "nothing was written, because the store was not reached" }

// Is makes ErrNotSent an ErrIndeterminate for programs: they try again.
func (notSent) Is(target error) bool { return target == ErrIndeterminate }

// notConnected reports whether err shows that no connection to the store was made. If a request had one attempt, such
// an error proves that the request was not sent.
func notConnected(err error) bool {
	var op *net.OpError
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &op) && op.Op == "dial" || errors.As(err, &certificate) ||
		errors.Is(err, http.ErrSchemeMismatch)
}

// PutError returns the error of a back end for a put that failed with err. sent means that a request was sent, and
// status is the status of the answer, or 0 if there was none.
func PutError(err error, cond Condition, sent bool, status int) error {
	kind := ErrIndeterminate
	switch {
	case !sent: // no credentials, no endpoint, or an ended context
		return err
	case cond.Conditional() && notConnected(err): // a conditional put has one attempt
		kind = ErrNotSent
	case cond.Conditional() && (status == http.StatusPreconditionFailed || status == http.StatusConflict):
		kind = ErrConflict
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests:
		// The store did not execute the put, because it timed out or is overloaded. With an indeterminate error, the
		// caller tries again.
	case 300 <= status && status < 500:
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// NetworkHint returns what a person should do about an error of the network or of the person's own interruption, or ""
// if err is neither.
func NetworkHint(err error) string {
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return fmt.Sprintf("no host has the name %s: check the endpoint, the region and this machine's DNS", name.Name)
	case errors.As(err, &name):
		return fmt.Sprintf("the name %s was not resolved: check this machine's DNS", name.Name)
	case errors.As(err, &certificate):
		return "the store's certificate is not trusted here: check the endpoint's host name, this machine's clock " +
			"and " +
			"its CA certificates"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return "the endpoint does not speak TLS: if it is meant to be without TLS, write http:// instead of https://"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at that address: start the store, or correct the endpoint's host and port"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route to that address: check this machine's network"
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		return "no connection was made in time: check the endpoint, firewalls and this machine's network"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "the store or a proxy in between closed the connection: try again"
	}
	return ""
}

// Interrupted reports whether err is only that the caller gave up, for example by Ctrl-C.
func Interrupted(err error) bool { return errors.Is(err, context.Canceled) }

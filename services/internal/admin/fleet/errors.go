package fleet

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nstance-kit/nstance/services/api/notleader"
	"github.com/nstance-kit/nstance/services/api/operatorclient"
	"github.com/nstance-kit/nstance/services/api/tunnel"
)

// Error describes why a call to a shard failed.
type Error struct {
	Shard   string
	Code    codes.Code
	Message string
	// Hint says what to do next. It may be empty.
	Hint string

	err error
	// refused means that a server was reached, and that one of the two refused the other's certificate.
	refused bool
}

// NoAnswer reports whether no leader answered, although nothing is known to be wrong with the call.
func (e *Error) NoAnswer() bool {
	return e != nil && !e.refused && (e.Code == codes.Unavailable || e.Code == codes.DeadlineExceeded)
}

func (e *Error) Error() string { return fmt.Sprintf("shard %s: %s", e.Shard, e.Message) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// MarshalJSON writes the code, the message, and the hint.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(Failure{Code: strings.ToLower(code.Code(e.Code).String()), Message: e.Message, Hint: e.Hint})
}

// Failure is the JSON form of an [Error].
type Failure struct {
	Code    string `json:"code"` // in lower case
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// refuse returns an error that nstance-admin itself detects, without an answer from the server.
func refuse(shard string, code codes.Code, hint, format string, args ...any) *Error {
	return &Error{Shard: shard, Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}

// asError converts any error to an Error.
func asError(shard string, err error) *Error { return explainError(shard, err, time.Time{}) }

// doctor returns the command line that examines a shard without a leader.
func doctor(shard string) string {
	return "nstance-admin doctor --shard " + shard + " --storage-bucket BUCKET"
}

// explainError converts the error of a call to an Error.
func explainError(shard string, err error, now time.Time) *Error {
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	addr := ""
	failed, ok := errors.AsType[*operatorclient.Error](err)
	if ok {
		addr, err = failed.Addr, failed.Err
	}
	e := &Error{Shard: shard, Code: status.Code(err), Message: status.Convert(err).Message(), err: err}
	switch {
	case errors.Is(err, context.DeadlineExceeded) || e.Code == codes.DeadlineExceeded:
		e.Code, e.Message = codes.DeadlineExceeded, fmt.Sprintf("no answer from %s in time", addr)
		e.Hint = "is the address right and reachable from here? A longer --request-timeout waits longer"
		return e
	case errors.Is(err, context.Canceled) || e.Code == codes.Canceled:
		e.Code, e.Message = codes.Canceled, "cancelled"
		return e
	}
	if notLeader := notleader.FromError(err); notLeader != nil {
		e.Message = addr + " " + strings.TrimPrefix(e.Message, "this server ")
		e.Hint = "leadership is moving; try again in a few seconds"
		if leader := notLeader.GetOperatorAddr(); leader != "" {
			e.Message += ", at " + leader
		} else {
			e.Hint = "the shard has no leader at the moment; find out more with: " + doctor(shard)
		}
		e.Message += others(failed)
		return e
	}
	if handshake, ok := errors.AsType[*operatorclient.HandshakeError](err); ok {
		_, network := errors.AsType[net.Error](handshake.Cause)
		e.err, e.refused = handshake.Cause, !network && !errors.Is(handshake.Cause, io.EOF)
		e.Message, e.Hint = explainHandshake(addr, handshake.Cause, now)
		return e
	}
	e.Hint = hint(e.Code)
	if e.Code == codes.Unimplemented && strings.HasPrefix(e.Message, "unknown service") {
		e.Message, e.Hint = addr+" is a port of the server for other clients, not its operator port", operatorPort(addr)
	}
	if e.Code == codes.Unavailable {
		switch {
		case strings.Contains(e.Message, "remote error: tls:"): // the server's alert is the only information
			e.refused = true
			e.Hint = "the server refuses the certificate in --identity-dir: is it of this cluster? nstance-admin " +
				"cluster register-operator makes a new one"
		case strings.Contains(e.Message, "no such host"):
			e.Hint = "no host has this name: correct the host name in --servers, or check this machine's DNS"
		case strings.Contains(e.Message, "connection error:"), strings.Contains(e.Message, "error reading from server"):
			e.Hint = "is a server running there, and is it the operator port (8993 unless configured otherwise)? " +
				doctor(shard) + " checks the shard without a leader"
		}
		e.Message = fmt.Sprintf("%s: %s", addr, noise.Replace(e.Message)) + others(failed)
	}
	return e
}

// others says in words why the other servers that were tried did not answer as the leader.
func others(failed *operatorclient.Error) (text string) {
	if failed == nil {
		return ""
	}
	for _, one := range failed.Tried {
		message := status.Convert(one.Err).Message()
		switch {
		case one.Addr == failed.Addr:
		case notleader.FromError(one.Err) != nil:
			text += "; " + one.Addr + " " + strings.TrimPrefix(message, "this server ")
		default:
			text += "; " + one.Addr + ": " + noise.Replace(message)
		}
	}
	return text
}

// noise deletes from an error the text that gRPC puts before the cause of a lost connection.
var noise = strings.NewReplacer("connection error: desc = ", "", "transport: Error while dialing: ", "", `"`, "")

// operatorPort is the hint to use the operator port of a server.
func operatorPort(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = "HOST"
	}
	return fmt.Sprintf("give the operator port in --servers: %s, unless operator_addr of the shard's configuration "+
		"has another port", net.JoinHostPort(host, "8993"))
}

// via adds to the error of a call through a tunnel which tunnel it was. The tunnel is the probable cause.
func (e *Error) via(way tunnel.Way) {
	var failed *tunnel.Error
	var peer *operatorclient.PeerError
	var host x509.HostnameError
	switch {
	case errors.As(e.err, &failed):
		e.Hint = failed.Advice
		return // its message names the way
	case errors.As(e.err, &peer), errors.As(e.err, &host):
		e.Hint = "check --via: it must lead to the servers of shard " + e.Shard + ", at the addresses in --servers"
	}
	e.Message += ", via " + way.String()
}

func explainHandshake(addr string, cause error, now time.Time) (message, hint string) {
	var peer *operatorclient.PeerError
	var host x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var ended *operatorclient.ExpiredError
	switch {
	case errors.As(cause, &ended):
		return cause.Error(), "make a new one with: nstance-admin cluster register-operator --output-dir DIR"
	case errors.Is(cause, operatorclient.ErrNoIdentity):
		return cause.Error(),
			"make one with: nstance-admin cluster register-operator --output-dir DIR; name it with " +
				"--identity-dir or NSTANCE_ADMIN_IDENTITY_DIR"
	case errors.As(cause, &peer):
		return fmt.Sprintf("%s: %s", addr, peer.Error()), "check --servers: each shard needs its own operator address"
	case errors.As(cause, &host):
		return fmt.Sprintf("%s: %s", addr, host.Error()),
			"use an address that the server advertises: its certificate names no other"
	case errors.As(cause, &unknown):
		return fmt.Sprintf("%s: the server's certificate is not from the CA in %s", addr, operatorclient.CAFile),
			"is this the right cluster? nstance-admin cluster register-operator writes the current " +
				operatorclient.CAFile
	case errors.As(cause, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("%s: the server's certificate is not valid at %s", addr, now.UTC().Format(time.RFC3339)),
			"check this machine's clock"
	}
	if strings.Contains(cause.Error(), "does not look like a TLS handshake") {
		return addr + " answers without TLS: it is not an operator port, but perhaps the port for health and metrics",
			operatorPort(addr)
	}
	return fmt.Sprintf("%s: %v", addr, cause), "is a server running there, and is it the operator port (8993 unless " +
		"configured otherwise)?"
}

// roleRefusal matches the message of a server that refuses a call for lack of a role.
var roleRefusal = regexp.MustCompile(`^[A-Za-z]+ needs the role (operator|admin):`)

// neededRole returns the role that a refused call needs, or "" for other errors.
func neededRole(e *Error) string {
	if found := roleRefusal.FindStringSubmatch(e.Message); found != nil && e.Code == codes.PermissionDenied {
		return found[1]
	}
	return ""
}

// registration returns the command line that gives the fleet's operator a role. The user must fill in only the bucket's
// name, because the identity directory does not contain it.
func (f *Fleet) registration(role string) string {
	text := "nstance-admin cluster register-operator"
	if identity, err := f.Identity(); err == nil {
		text += " --cluster-id " + identity.Who.Cluster + " --tenant " + identity.Who.Tenant
	}
	return fmt.Sprintf("with access to the bucket: %s --role %s --storage-bucket BUCKET --output-dir %s; servers "+
		"learn a changed role within five minutes", text, role, f.options.IdentityDir)
}

func hint(code codes.Code) string {
	switch code {
	case codes.Unavailable:
		return "try again in a moment"
	case codes.Unauthenticated:
		return "the certificate in --identity-dir is not accepted; nstance-admin cluster register-operator makes a " +
			"new one"
	case codes.PermissionDenied:
		return "check the tenant of the certificate in --identity-dir, whether the operator was removed, and what " +
			"the shard's configuration permits operators"
	case codes.NotFound:
		return "nstance-admin group list and instance list show what there is in the tenant"
	case codes.AlreadyExists:
		return "nstance-admin group set changes it"
	case codes.Aborted:
		return "another program changed it at the same time; read it and try again"
	case codes.ResourceExhausted:
		return "the tenant's quota or the server's capacity is used up; delete instances or groups, or try again later"
	case codes.Unimplemented:
		return "the server is older than this nstance-admin"
	case codes.FailedPrecondition:
		return "nstance-admin group status and config status tell more"
	}
	return ""
}

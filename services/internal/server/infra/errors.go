package infra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
)

// Class says what a provider's error means for the caller. A Class is itself an error, so that errors.Is(err,
// infra.Capacity) works.
type Class string

const (
	// NotFound means that the provider does not know the VM, or does not know it yet.
	NotFound Class = "not found"
	// Conflict means that this instance ID was already used, either with other parameters or for a VM that has since
	// been deleted. The caller should look the VM up by its tag.
	Conflict Class = "conflict"
	// Capacity means that there is no room for this instance type in this subnet now. Another type or subnet may
	// succeed.
	Capacity Class = "no capacity"
	// Throttled means that there were too many calls. The same call can succeed later.
	Throttled Class = "throttled"
	// Denied means that credentials or permissions are missing.
	Denied Class = "denied"
	// Invalid means that the request is wrong and will stay wrong.
	Invalid Class = "invalid"
	// Indeterminate means that it is unknown whether the call took effect, and that it may still take effect. A read
	// that fails with this class says nothing about the VM.
	Indeterminate Class = "indeterminate"
)

// Classes lists all classes.
func Classes() []Class {
	return []Class{NotFound, Conflict, Capacity, Throttled, Denied, Invalid, Indeterminate}
}

// Error implements error, so that a Class can be the target of errors.Is.
func (c Class) Error() string { return string(c) }

// Error is a provider's error with its class. Op names the attempted operation, for example "create knc06…".
type Error struct {
	Class Class
	Op    string
	// Quota names the quota that the call exceeded, in the provider's words. It is "" if the call exceeded no quota, or
	// if the quota is not known.
	Quota string
	Err   error
}

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s", e.Op, e.Class)
	if e.Quota != "" {
		text += " (quota " + e.Quota + ")"
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause, in which errors.Is finds no class.
func (e *Error) Unwrap() error {
	if e.Err == nil {
		return nil
	}
	return cause{e.Err}
}

// cause is the cause of an [*Error]. Its own classes say nothing about the operation that failed because of it.
type cause struct{ error }

// Is compares everything but classes.
func (c cause) Is(target error) bool {
	_, class := target.(Class)
	return !class && errors.Is(c.error, target)
}

// As finds every type of error in the cause.
func (c cause) As(target any) bool { return errors.As(c.error, target) }

// Is makes errors.Is(err, class) compare class with the class of this error. It ignores the classes of wrapped errors.
func (e *Error) Is(target error) bool { return target == error(e.Class) }

// Errorf makes an [*Error]. The format may wrap a cause with %w.
func Errorf(class Class, op, format string, args ...any) error {
	return &Error{Class: class, Op: op, Err: fmt.Errorf(format, args...)}
}

// Wrap gives err a class and an operation. If err comes from a context that ended, the class is always [Indeterminate],
// because the request may have been sent. Wrap returns nil for a nil error.
func Wrap(class Class, op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		class = Indeterminate
	}
	return &Error{Class: class, Op: op, Err: err}
}

// Reclass returns err with another class, if err is an [*Error].
func Reclass(err error, class Class) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // a wrapped error keeps its class
		return &Error{Class: class, Op: e.Op, Quota: e.Quota, Err: e.Err}
	}
	return err
}

// MaxMessage is the maximum length in bytes of a text from a cloud that is written to logs and alerts.
const MaxMessage = 1000

// OneLine makes a text from a cloud fit for one log line: it replaces control characters by spaces, and cuts the text
// after `most` bytes.
func OneLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// JoinProblems returns an error with the problems of one part of a configuration, or nil if there are only warnings.
// The arguments in path are the elements of the part's path.
func JoinProblems(found []cloud.Problem, path ...any) error {
	var problems config.Problems
	for _, p := range found {
		problems = append(problems, config.Problem{Path: config.JoinPath(append(slices.Clone(path), p.Path...)...),
			Message: p.Message, Hint: p.Hint, Warning: p.WhenWritten})
	}
	return problems.Err()
}

// PartialError is the error of a List that could not read all VMs, for example because one of several hosts did not
// answer.
type PartialError struct {
	// Unlisted are prefixes of provider IDs. A VM whose ID begins with one of them may exist although it is not in the
	// list.
	Unlisted []string
	Err      error
}

// Error implements error.
func (e *PartialError) Error() string {
	return "the list lacks the VMs of " + strings.Join(e.Unlisted, ", ") + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *PartialError) Unwrap() error { return e.Err }

// UnlistedBy examines the error of a List, and says which VMs may be missing from the list. For a [PartialError], it
// returns prefixes: VMs whose provider IDs begin with one of them may be missing. For a nil error, ok is true and there
// are no prefixes. For any other error, ok is false: the list then says nothing about any VM.
func UnlistedBy(err error) (prefixes []string, ok bool) {
	if err == nil {
		return nil, true
	}
	partial, ok := errors.AsType[*PartialError](err)
	if !ok {
		return nil, false
	}
	return partial.Unlisted, true
}

// QuotaOf returns the first quota that an error in err's chain names, or "".
func QuotaOf(err error) string {
	for {
		e, ok := errors.AsType[*Error](err)
		switch {
		case !ok:
			return ""
		case e.Quota != "":
			return e.Quota
		}
		err = e.Err
	}
}

// ClassOf returns the class of the outermost classed error in err's chain. It returns [Indeterminate] if there is none,
// because an unknown failure proves nothing. ClassOf(nil) is "".
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	if c, ok := errors.AsType[Class](err); ok {
		return c
	}
	return Indeterminate
}

package infra

import (
	"context"
	"errors"
	"fmt"
)

// Class says what a provider's error means for the caller. A Class is itself an error, so that errors.Is(err,
// infra.Capacity) works.
type Class string

const (
	// NotFound: the provider knows no such VM, or does not know it yet.
	NotFound Class = "not found"
	// Conflict: this instance ID was used before, with other parameters or for a VM that was deleted since. Look it up
	// by its tag.
	Conflict Class = "conflict"
	// Capacity: no room for this type in this subnet now. Another type or subnet may do.
	Capacity Class = "no capacity"
	// Throttled: too many calls. The same call will do later.
	Throttled Class = "throttled"
	// Denied: credentials or permissions are missing.
	Denied Class = "denied"
	// Invalid: the request itself is wrong and will stay wrong.
	Invalid Class = "invalid"
	// Indeterminate: nobody can say whether the call took effect, and it may still do. Of a read: nothing is known.
	Indeterminate Class = "indeterminate"
)

// Error implements error, so that a Class can be the target of errors.Is.
func (c Class) Error() string { return string(c) }

// Definite reports whether an error of this class proves that the call had no effect.
func (c Class) Definite() bool { return c != Indeterminate }

// Error is a provider's error with its class. Op says what was tried, in words: "create knc06…".
type Error struct {
	Class Class
	Op    string
	Err   error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Op, e.Class)
	}
	return fmt.Sprintf("%s: %s: %v", e.Op, e.Class, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, class) ask for the class of this error; that of an error further down does not count.
func (e *Error) Is(target error) bool { return target == error(e.Class) }

// Errorf makes an [*Error]; format may wrap a cause with %w.
func Errorf(class Class, op, format string, args ...any) error {
	return &Error{Class: class, Op: op, Err: fmt.Errorf(format, args...)}
}

// Wrap gives err a class and says what was tried. A context that ended makes it [Indeterminate] whatever class was
// meant: the request may have gone out. Wrap of nil is nil.
func Wrap(class Class, op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		class = Indeterminate
	}
	return &Error{Class: class, Op: op, Err: err}
}

// ClassOf returns the class of the outermost classed error in err's chain. What has none is [Indeterminate]: an unknown
// failure proves nothing. ClassOf(nil) is "".
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

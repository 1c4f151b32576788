package infra

// Wrapper is a Provider that forwards its calls to another one, to measure them for example.
type Wrapper interface {
	Provider
	// Unwrap returns the wrapped provider.
	Unwrap() Provider
}

// Capability returns an optional capability of a provider, and whether the provider has it. A [Wrapper] has the
// capabilities of the provider that it wraps: those that the wrapper implements are its own, the others are the wrapped
// provider's.
func Capability[T any](p Provider) (capability T, ok bool) {
	own, implements := p.(T)
	wrapper, wraps := p.(Wrapper)
	if !wraps {
		return own, implements
	}
	capability, ok = Capability[T](wrapper.Unwrap())
	if ok && implements {
		return own, true
	}
	return capability, ok
}

package infra

// Wrapper is a Provider that forwards its calls to another Provider, for example to measure them.
type Wrapper interface {
	Provider
	Unwrap() Provider
}

// Capability returns an optional capability of a provider, and whether the provider has it. A [Wrapper] has exactly the
// capabilities of the provider that it wraps. If the wrapper implements the capability too, Capability returns the
// wrapper. Otherwise it returns the wrapped provider.
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

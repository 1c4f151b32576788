package infra

// Capability finds an optional capability of a provider, also behind wrappers, which say what they wrap by a method
// Unwrap() Provider.
func Capability[T any](p Provider) (capability T, ok bool) {
	for p != nil {
		if capability, ok = p.(T); ok {
			return capability, true
		}
		wrapper, wraps := p.(interface{ Unwrap() Provider })
		if !wraps {
			break
		}
		p = wrapper.Unwrap()
	}
	return capability, false
}

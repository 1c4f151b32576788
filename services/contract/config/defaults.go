package config

import "reflect"

// DefaultKeyVariable is the environment variable that an encryption key of provider env is read from.
const DefaultKeyVariable = "NSTANCE_ENCRYPTION_KEY"

// WithDefaults returns a copy in which everything that was not written has its default. The copy shares no memory with
// s. What a group takes from its template is left as it is; see [Shard.Merged].
func (s *Shard) WithDefaults() *Shard {
	out := cloned(s)
	fill(&out.Server.Bind)
	// An address that is not advertised otherwise is advertised as it is bound.
	for i := range fieldsOf(reflect.TypeFor[Addresses]()) {
		advertise := reflect.ValueOf(&out.Server.Advertise).Elem().Field(i)
		if advertise.IsZero() {
			advertise.Set(reflect.ValueOf(out.Server.Bind).Field(i))
		}
	}
	fill(out)
	fillKey := func(k *KeySource) {
		if k != nil && k.Provider == "env" && k.Source == "" {
			k.Source = DefaultKeyVariable
		}
	}
	fillKey(out.Cluster.Secrets.EncryptionKey)
	for i := range out.Cluster.Secrets.OldEncryptionKeys {
		fillKey(&out.Cluster.Secrets.OldEncryptionKeys[i])
	}
	return out
}

// fill sets every field that is not set and has a default.
func fill(target any) {
	eachField(reflect.ValueOf(target), func(f field, v reflect.Value) {
		if !v.IsZero() {
			return
		}
		if value, ok := f.fallbackValue(); ok {
			v.Set(value)
		}
	})
}

// unfill is the opposite of fill: it clears every field that has its default.
func unfill(target any) {
	eachField(reflect.ValueOf(target), func(f field, v reflect.Value) {
		if v.IsZero() {
			return
		}
		if value, ok := f.fallbackValue(); ok && reflect.DeepEqual(v.Interface(), value.Interface()) {
			v.SetZero()
		}
	})
}

package config

import "reflect"

// DefaultKeyVariable is the environment variable that holds an encryption key with the provider "env", unless the
// configuration names another variable.
const DefaultKeyVariable = "NSTANCE_ENCRYPTION_KEY"

// WithDefaults returns a copy in which all unset fields have their defaults. The copy shares no memory with s. Fields
// that a group inherits from its template are not filled in; see [Shard.Merged].
func (s *Shard) WithDefaults() *Shard {
	out := cloned(s)
	fill(&out.Server.Bind)
	// The default of an advertised address is the bind address.
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

// fill sets every unset field that has a default.
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

// unfill is the inverse of fill: it clears every field that has its default value.
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

package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/cloud/all"
)

// Stores and key sources that belong to no cloud.
const (
	// FileStore is a directory that replaces a bucket.
	FileStore = "file"
	// ObjectStorage stores sealed secrets in the cluster's bucket.
	ObjectStorage = "object-storage"
	// EnvKeySource reads an encryption key from an environment variable.
	EnvKeySource = "env"
	// FileKeySource reads an encryption key from a file.
	FileKeySource = "file"
)

// CloudNames returns the clouds that can be a shard's provider, in the order in which the documents list them.
func CloudNames() []string { return cloudNames(func(cloud.Block) bool { return true }) }

// ObjectStoreNames returns the kinds of object store.
func ObjectStoreNames() []string {
	return append(namesOf(objectStores(), func(s cloud.ObjectStore) string { return s.Name }), FileStore)
}

// SecretsStoreNames returns the kinds of secrets store.
func SecretsStoreNames() []string { return append([]string{ObjectStorage}, secretsNames()...) }

// KeySourceNames returns the kinds of source from which an encryption key can be read.
func KeySourceNames() []string {
	return append([]string{EnvKeySource, FileKeySource}, secretsNames()...)
}

func secretsNames() []string {
	return namesOf(secretsStores(), func(s cloud.SecretsStore) string { return s.Name })
}

// enumValues returns the allowed values in an enum rule of a struct tag. text is the part after "enum=": either the
// values, or a dot and the name of a list, such as .clouds.
func enumValues(text string) []string {
	switch text {
	case ".clouds":
		return CloudNames()
	case ".images":
		return cloudNames(func(b cloud.Block) bool { return b.HasImages })
	case ".load_balancers":
		return cloudNames(func(b cloud.Block) bool { return b.LoadBalancer != nil })
	case ".attestations":
		return namesOf(all.Blocks(), func(b cloud.Block) string { return b.Attestation })
	case ".leader_networks":
		var out []string
		for _, kind := range ofClouds(func(b cloud.Block) []string { return b.LeaderNetworkKinds }) {
			if !slices.Contains(out, kind) {
				out = append(out, kind)
			}
		}
		return out
	case ".object_stores":
		return ObjectStoreNames()
	case ".secrets_stores":
		return SecretsStoreNames()
	case ".key_sources":
		return KeySourceNames()
	}
	return strings.Split(text, "|")
}

func cloudNames(has func(cloud.Block) bool) []string {
	return namesOf(slices.DeleteFunc(slices.Clone(all.Blocks()), func(b cloud.Block) bool { return !has(b) }),
		func(b cloud.Block) string { return b.Name })
}

// namesOf returns the names of the elements of a list, without those that are "".
func namesOf[T any](list []T, name func(T) string) (out []string) {
	for _, element := range list {
		if text := name(element); text != "" {
			out = append(out, text)
		}
	}
	return out
}

// ofClouds returns what the function "list" returns for each cloud.
func ofClouds[T any](list func(cloud.Block) []T) (out []T) {
	for _, block := range all.Blocks() {
		out = append(out, list(block)...)
	}
	return out
}

func objectStores() []cloud.ObjectStore {
	return ofClouds(func(b cloud.Block) []cloud.ObjectStore { return b.ObjectStores })
}

func secretsStores() []cloud.SecretsStore {
	return ofClouds(func(b cloud.Block) []cloud.SecretsStore { return b.SecretsStores })
}

// first returns the first element of a list for which the function "is" returns true, or the zero value.
func first[T any](list []T, is func(T) bool) (found T) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		found = list[i]
	}
	return found
}

// secretsStoreOf returns the description of a cloud's secrets store. If no such store has the name, the description is
// empty.
func secretsStoreOf(name string) cloud.SecretsStore {
	return first(secretsStores(), func(s cloud.SecretsStore) bool { return s.Name == name })
}

// HasIdentityTokens reports whether VMs of a cloud get identity tokens with which they can assume roles of another
// cloud.
func HasIdentityTokens(name string) bool { return blockOf(name).IdentityTokens }

// SecretsStoresWithProject returns the kinds of secrets store that accept a project_id.
func SecretsStoresWithProject() []string {
	return namesOf(secretsStores(), func(s cloud.SecretsStore) string {
		if s.TakesProject {
			return s.Name
		}
		return ""
	})
}

// RegionVariable returns the environment variable from which the SDK of an object store takes its region, or "" if
// there is none. storeName is the kind of object store.
func RegionVariable(storeName string) string {
	return first(objectStores(), func(s cloud.ObjectStore) bool { return s.Name == storeName }).RegionVariable
}

// cloudOfStore returns the name of the cloud that has a kind of object store, or "" for a store without a cloud.
func cloudOfStore(name string) string {
	return first(all.Blocks(), func(b cloud.Block) bool {
		return slices.ContainsFunc(b.ObjectStores, func(s cloud.ObjectStore) bool { return s.Name == name })
	}).Name
}

// storesOf returns the kinds of object store that a cloud has, as a text.
func storesOf(name string) string {
	return strings.Join(namesOf(blockOf(name).ObjectStores, func(s cloud.ObjectStore) string { return s.Name }), ", ")
}

// storesWithEndpoint returns the kinds of object store that accept an endpoint URL.
func storesWithEndpoint() []string {
	return namesOf(objectStores(), func(s cloud.ObjectStore) string {
		if s.TakesEndpoint {
			return s.Name
		}
		return ""
	})
}

// blockOf returns the description of a cloud. For an unknown name it returns an empty one, which requires and checks
// nothing.
func blockOf(name string) cloud.Block {
	return first(all.Blocks(), func(b cloud.Block) bool { return b.Name == name })
}

// cloudOf returns the name of the cloud that the struct type typ belongs to, or "". Config types embed such structs.
func cloudOf(typ reflect.Type) string {
	return first(all.Blocks(), func(b cloud.Block) bool {
		return slices.Contains([]reflect.Type{reflect.TypeOf(b.LeaderNetwork), reflect.TypeOf(b.LoadBalancer),
			reflect.TypeOf(b.Identity)}, typ)
	}).Name
}

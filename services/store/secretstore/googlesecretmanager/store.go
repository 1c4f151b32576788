// Package googlesecretmanager stores the cluster's secrets in Google Secret Manager.
//
// Invariant: Get returns exactly the bytes of Put. Exactly one of several concurrent creations succeeds. Get of a
// secret with a disabled or destroyed version is an error other than "not found". If the secret is the CA, "not found"
// would make Nstance create a second CA.
//
// The service creates a secret without a version. A Put with IfAbsent adds a version only if the same Put has created
// the secret. Get first reads the alias "latest", which is eventually consistent. Then it reads the versions with the
// next numbers, until one does not exist. Reads by number are strongly consistent.
// https://cloud.google.com/secret-manager/docs/reference/consistency
package googlesecretmanager

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/api/secretmanager/v1"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/objstore"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

const (
	// maxSecret is the maximum size of a secret in bytes. https://cloud.google.com/secret-manager/quotas
	maxSecret = 65536
	// maxID is the maximum length of the ID of a secret.
	maxID = 255
	// abandonedAfter is the age from which a secret without versions counts as abandoned by its creator. No Put takes
	// that long.
	abandonedAfter = time.Minute
	// creationTimeout is the maximum time between the start of a creation and the request that adds the first version.
	// It also bounds the time that other callers wait for that version.
	creationTimeout = 20 * time.Second
	// tries is the maximum number of attempts to create a secret that other writers create and delete at the same time.
	tries = 5
)

// Backend describes this kind of secrets store.
var Backend = secretstore.Backend{Name: "google-secret-manager",
	Open: func(ctx context.Context, settings config.Secrets, options secretstore.Options) (secretstore.Store, error) {
		access, err := googlecloud.Open(ctx, options.Access.Federation)
		if err != nil {
			return nil, err
		}
		project := cmp.Or(settings.ProjectID, access.Project)
		if project == "" {
			return nil, googlecloud.ErrNoProject
		}
		service, err := secretmanager.NewService(ctx, access.Options("secret_manager")...)
		if err != nil {
			return nil, fmt.Errorf("open Google Secret Manager: %w", err)
		}
		return New(service, project, settings.Prefix), nil
	}}

// Store is a [secretstore.Store].
type Store struct {
	secrets *secretmanager.ProjectsSecretsService
	project string
	prefix  string
	// now and sleep replace the clock in tests.
	now   func() time.Time
	sleep func(context.Context, time.Duration) error
}

// New returns the store of a project. All names start with prefix.
func New(service *secretmanager.Service, project, prefix string) *Store {
	return &Store{service.Projects.Secrets, "projects/" + project, prefix, time.Now, objstore.Sleep}
}

// EncodeID returns the service's ID for a name. IDs may have only letters, digits, dashes and underscores. EncodeID
// replaces each other byte, and also each underscore, by an underscore and two hexadecimal digits.
func EncodeID(name string) string {
	var id strings.Builder
	for _, c := range []byte(name) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' {
			id.WriteByte(c)
		} else {
			fmt.Fprintf(&id, "_%02x", c)
		}
	}
	return id.String()
}

// decodeID returns the name for an ID, or "" if no name has this ID.
func decodeID(id string) string {
	var name []byte
	for i := 0; i < len(id); i++ {
		if id[i] != '_' {
			name = append(name, id[i])
			continue
		}
		if i+3 > len(id) {
			return ""
		}
		c, err := strconv.ParseUint(id[i+1:i+3], 16, 8)
		if err != nil {
			return ""
		}
		name, i = append(name, byte(c)), i+2
	}
	if EncodeID(string(name)) != id {
		return ""
	}
	return string(name)
}

// resource returns the resource name of a secret.
func (s *Store) resource(name string) string {
	return s.project + "/secrets/" + EncodeID(s.prefix+name)
}

// Get implements secretstore.Store.
func (s *Store) Get(ctx context.Context, name string) (secretstore.Secret, error) {
	if err := secretstore.ValidateName(name); err != nil {
		return secretstore.Secret{}, err
	}
	content, err := s.get(ctx, s.resource(name))
	if err != nil {
		return secretstore.Secret{}, s.explain(ctx, "read", name, err)
	}
	return secretstore.Secret{Name: name, Value: secretstore.NewValue(content)}, nil
}

func (s *Store) get(ctx context.Context, resource string) ([]byte, error) {
	content, number, err := s.access(ctx, resource, "latest")
	for err == nil || isStatus(err, http.StatusNotFound) {
		// The alias "latest" may lag behind, so check whether there is a next version.
		next, _, nextErr := s.access(ctx, resource, strconv.Itoa(number+1))
		if isStatus(nextErr, http.StatusNotFound) {
			return content, err
		}
		content, number, err = next, number+1, nextErr
	}
	return nil, err
}

// access returns the content and the number of a version.
func (s *Store) access(ctx context.Context, resource, version string) ([]byte, int, error) {
	out, err := googlecloud.Repeat(ctx, func() (*secretmanager.AccessSecretVersionResponse, error) {
		return s.secrets.Versions.Access(resource + "/versions/" + version).Context(ctx).Do()
	})
	if err != nil {
		return nil, 0, err
	}
	number, err := strconv.Atoi(out.Name[strings.LastIndexByte(out.Name, '/')+1:])
	if err != nil || out.Payload == nil {
		return nil, 0, errors.New("the answer holds no version or no payload")
	}
	content, err := base64.StdEncoding.DecodeString(out.Payload.Data)
	if err != nil || out.Payload.DataCrc32c != 0 && out.Payload.DataCrc32c != checksum(content) {
		return nil, 0, errors.New("the payload was damaged on its way")
	}
	return content, number, nil
}

func checksum(content []byte) int64 {
	return int64(crc32.Checksum(content, crc32.MakeTable(crc32.Castagnoli)))
}

// Put implements secretstore.Store.
func (s *Store) Put(ctx context.Context, name string, value secretstore.Value, cond secretstore.Condition) error {
	if err := secretstore.ValidatePut(name, value, cond); err != nil {
		return err
	}
	content, resource := value.Reveal(), s.resource(name)
	switch id := EncodeID(s.prefix + name); {
	case len(content) > maxSecret:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", secretstore.ErrInvalid, len(content), maxSecret)
	case len(id) > maxID:
		return fmt.Errorf("%w: the ID %q has %d characters, at most %d are allowed", secretstore.ErrInvalid, id,
			len(id), maxID)
	}
	if cond == secretstore.IfAbsent {
		return s.explain(ctx, "write", name, s.create(ctx, resource, content))
	}
	return s.explain(ctx, "write", name, s.replace(ctx, resource, content))
}

// replace adds a version, and creates the secret if it does not exist.
func (s *Store) replace(ctx context.Context, resource string, content []byte) (err error) {
	for range tries {
		if err = s.addVersion(ctx, resource, content); !isStatus(err, http.StatusNotFound) {
			return err
		}
		if _, err = s.createEmpty(ctx, resource); err != nil && !isStatus(err, http.StatusConflict) {
			return err
		}
	}
	return err
}

// create creates a secret and its first version. Only one of several concurrent callers can create the secret, and only
// that caller adds the version.
func (s *Store) create(ctx context.Context, resource string, content []byte) error {
	began := s.now()
	for {
		_, err := s.createEmpty(ctx, resource)
		switch {
		case err == nil:
			if s.now().Sub(began) > creationTimeout {
				return fmt.Errorf("the creation took longer than %s", creationTimeout)
			}
			return s.addVersion(ctx, resource, content)
		case !isStatus(err, http.StatusConflict):
			return err
		}
		if _, err := s.get(ctx, resource); !isStatus(err, http.StatusNotFound) {
			return cmp.Or(err, secretstore.ErrExists)
		}
		// The secret's creator has not added a version yet, or has failed before it could add one.
		if err := s.removeAbandoned(ctx, resource); err != nil {
			return err
		}
		if s.now().Sub(began) > creationTimeout {
			return fmt.Errorf("the secret has no version: its creator works or has failed; try again in %s",
				abandonedAfter)
		}
		if err := s.sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// removeAbandoned deletes a secret without versions if its creator has failed.
func (s *Store) removeAbandoned(ctx context.Context, resource string) error {
	secret, err := s.secrets.Get(resource).Context(ctx).Do()
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	created, err := time.Parse(time.RFC3339, secret.CreateTime)
	if err != nil || s.now().Sub(created) < abandonedAfter {
		return nil //nolint:nilerr // without a time, the secret stays
	}
	_, err = s.secrets.Delete(resource).Etag(secret.Etag).Context(ctx).Do()
	if isStatus(err, http.StatusNotFound) || isStatus(err, http.StatusBadRequest) {
		return nil // another caller has deleted it, or it changed meanwhile
	}
	return err
}

// createEmpty creates a secret without versions. It does not repeat the request: after a lost answer, a second request
// would fail because the first one created the secret.
func (s *Store) createEmpty(ctx context.Context, resource string) (*secretmanager.Secret, error) {
	id := resource[strings.LastIndexByte(resource, '/')+1:]
	return s.secrets.Create(s.project, &secretmanager.Secret{Replication: &secretmanager.Replication{
		Automatic: &secretmanager.Automatic{}}}).SecretId(id).Context(ctx).Do()
}

func (s *Store) addVersion(ctx context.Context, resource string, content []byte) error {
	_, err := s.secrets.AddVersion(resource, &secretmanager.AddSecretVersionRequest{
		Payload: &secretmanager.SecretPayload{Data: base64.StdEncoding.EncodeToString(content),
			DataCrc32c: checksum(content)}}).Context(ctx).Do()
	return err
}

// Delete implements secretstore.Store.
func (s *Store) Delete(ctx context.Context, name string) error {
	if err := secretstore.ValidateName(name); err != nil {
		return err
	}
	_, err := googlecloud.Repeat(ctx, func() (*secretmanager.Empty, error) {
		return s.secrets.Delete(s.resource(name)).Context(ctx).Do()
	})
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	return s.explain(ctx, "delete", name, err)
}

// List implements secretstore.Store. It returns the names without the prefix. It skips a name that lacks the prefix, or
// that is invalid without the prefix.
func (s *Store) List(ctx context.Context) ([]string, error) {
	var names []string
	for page := ""; ; {
		out, err := googlecloud.Repeat(ctx, func() (*secretmanager.ListSecretsResponse, error) {
			return s.secrets.List(s.project).PageSize(1000).PageToken(page).Context(ctx).Do()
		})
		if err != nil {
			return nil, fmt.Errorf("list secrets of Google Secret Manager: %w", err)
		}
		for _, secret := range out.Secrets {
			full := decodeID(secret.Name[strings.LastIndexByte(secret.Name, '/')+1:])
			name, ok := strings.CutPrefix(full, s.prefix)
			if ok && secretstore.ValidateName(name) == nil {
				names = append(names, name)
			}
		}
		if page = out.NextPageToken; page == "" {
			break
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// explain translates the service's errors. The new errors may quote the service's messages, because those never contain
// a secret.
func (s *Store) explain(ctx context.Context, what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // nothing is known
	case isStatus(err, http.StatusNotFound):
		return fmt.Errorf("%w: Google Secret Manager has no %q in %s", secretstore.ErrNotFound, EncodeID(s.prefix+name),
			s.project)
	case isStatus(err, http.StatusBadRequest) && what == "read":
		err = fmt.Errorf("if its latest version is disabled or destroyed, enable it or add one: %w", err)
	}
	return fmt.Errorf("%s secret %q of Google Secret Manager (%s): %w", what, EncodeID(s.prefix+name), s.project, err)
}

func isStatus(err error, status int) bool { return googlecloud.StatusOf(err) == status }

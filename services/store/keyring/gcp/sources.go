// Package gcp reads encryption keys from Google Secret Manager.
//
// Invariant: no error quotes a key, and no request is sent before a key is requested.
package gcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/api/secretmanager/v1"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
	"github.com/nstance-kit/nstance/services/store/keyring"
)

// Sources returns the source "google-secret-manager". In the configuration, the source of a key is the secret's name in
// the project, or its full name such as projects/p/secrets/s. Both may end in /versions/ and a version. The default is
// the latest version.
func Sources(access cloud.Access) []keyring.Source {
	return []keyring.Source{{Name: "google-secret-manager", Read: account(access.Federation).readSecret}}
}

// account is the identity with which keys are read.
type account cloud.Federation

func (a account) readSecret(ctx context.Context, source config.KeySource) ([]byte, error) {
	if source.Source == "" {
		return nil, errors.New("no source is named: the name of the secret")
	}
	access, err := googlecloud.Open(ctx, cloud.Federation(a))
	if err != nil {
		return nil, err
	}
	name, err := versionName(source, access.Project)
	if err != nil {
		return nil, err
	}
	service, err := secretmanager.NewService(ctx, access.Options("secret_manager")...)
	if err != nil {
		return nil, err
	}
	out, err := googlecloud.Repeat(ctx, func() (*secretmanager.AccessSecretVersionResponse, error) {
		return service.Projects.Secrets.Versions.Access(name).Context(ctx).Do()
	})
	switch {
	case googlecloud.StatusOf(err) == http.StatusForbidden || googlecloud.StatusOf(err) == http.StatusUnauthorized:
		return nil, fmt.Errorf("%w: %w", keyring.ErrDenied, err)
	case err != nil:
		return nil, err
	case out.Payload == nil:
		return nil, errors.New("the answer holds no payload")
	}
	data, err := base64.StdEncoding.DecodeString(out.Payload.Data)
	if err != nil {
		return nil, errors.New("the answer is not base64") // the error of the decoder could quote the key
	}
	return data, nil
}

// versionName returns the full name of a secret's version.
func versionName(source config.KeySource, project string) (string, error) {
	name := source.Source
	if !strings.HasPrefix(name, "projects/") {
		project = cmp.Or(source.ProjectID, project)
		if project == "" {
			return "", googlecloud.ErrNoProject
		}
		name = "projects/" + project + "/secrets/" + name
	}
	if !strings.Contains(name, "/versions/") {
		name += "/versions/latest"
	}
	return name, nil
}

package gcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"time"

	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

// Cloud returns the infra.Cloud of Google Cloud. Its VMs are Compute Engine instances.
func Cloud() infra.Cloud {
	return infra.Cloud{Config: contract.Block, Open: open, Identity: identify, Consoles: readConsoles}
}

const (
	// metadataTimeout limits the request for this machine's ID, because no answer arrives outside of Google Cloud.
	metadataTimeout = 4 * time.Second
	metadataHost    = "metadata.google.internal"
	// metadataVariable is the environment variable that can replace metadataHost, the host of the metadata server.
	metadataVariable = "GCE_METADATA_HOST"
)

var numericID = regexp.MustCompile(`^[1-9][0-9]{0,19}$`)

// identify implements the function Identity of infra.Cloud. It asks the metadata server for this machine's numeric ID.
// This ID is the default for the server's ID. The machine's name is not unique: in an instance group, a replacement
// machine gets the name of its predecessor.
func identify(ctx context.Context, _ infra.Env) (infra.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	host := os.Getenv(metadataVariable)
	if host == "" {
		host = metadataHost
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/computeMetadata/v1/instance/id", nil)
	if err != nil {
		return infra.Machine{}, fmt.Errorf("ask the metadata server: %s: %w", metadataVariable, err)
	}
	req.Header.Set("Metadata-Flavor", "Google")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return infra.Machine{}, fmt.Errorf("ask the metadata server for this machine's ID: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 128))
	switch {
	case err != nil:
		return infra.Machine{}, fmt.Errorf("read this machine's ID from the metadata server: %w", err)
	case answer.StatusCode != http.StatusOK || answer.Header.Get("Metadata-Flavor") != "Google":
		return infra.Machine{}, errors.New("the metadata server is not that of Google Cloud: " + answer.Status)
	case !numericID.Match(text):
		return infra.Machine{}, fmt.Errorf("the metadata server says that this machine's ID is %q", text)
	}
	return infra.Machine{ID: string(text), Named: true}, nil
}

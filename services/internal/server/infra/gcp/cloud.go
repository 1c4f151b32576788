package gcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/api/compute/v1"

	"github.com/nstance-kit/nstance/services/contract/cloud"
	contract "github.com/nstance-kit/nstance/services/contract/cloud/gcp"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/server/infra"
	"github.com/nstance-kit/nstance/services/store/googlecloud"
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
	host := cmp.Or(os.Getenv(metadataVariable), metadataHost)
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

// readConsoles implements the function Consoles of infra.Cloud. It finds the shard's server machines by the labels that
// the Terraform module "shard" sets. It returns the output of their serial port 1. Compute Engine keeps no output of a
// deleted machine.
func readConsoles(ctx context.Context, shard *config.Shard) (found []infra.Console, err error) {
	access, err := googlecloud.Open(ctx, cloud.Federation{})
	if err != nil {
		return nil, err
	}
	provider := shard.Server.Provider
	project := cmp.Or(provider.Options[contract.OptionProject], access.Project)
	if project == "" {
		return nil, googlecloud.ErrNoProject
	}
	service, err := compute.NewService(ctx, access.Options("compute")...)
	if err != nil {
		return nil, fmt.Errorf("make the Compute Engine client: %w", err)
	}
	servers := service.Instances.List(project, provider.Zone).Filter(fmt.Sprintf(
		"labels.nstance-cluster=%s AND labels.nstance-server=%s", shard.Cluster.ID, shard.Server.Shard))
	var all []*compute.Instance
	if err := servers.Pages(ctx, func(page *compute.InstanceList) error {
		all = append(all, page.Items...)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list the servers' machines: %w", err)
	}
	for _, machine := range all {
		out, err := service.Instances.GetSerialPortOutput(project, provider.Zone, machine.Name).Context(ctx).Do()
		if err != nil {
			return nil, fmt.Errorf("read the console of %s: %w", machine.Name, err)
		}
		found = append(found, infra.Console{Machine: strconv.FormatUint(machine.Id, 10), State: machine.Status,
			Output: out.Contents})
	}
	return found, nil
}

package aws

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// IMDS lists the methods of the instance metadata service that the provider uses.
type IMDS interface {
	GetMetadata(context.Context, *imds.GetMetadataInput, ...func(*imds.Options)) (*imds.GetMetadataOutput, error)
}

const (
	// metadataTimeout bounds the request for this machine's ID. Without a metadata service, no answer ever arrives.
	metadataTimeout  = 4 * time.Second
	metadataAttempts = 3
)

// NewIMDS makes a client of the instance metadata service. It uses version 2 only, at the SDK's default address or at
// AWS_EC2_METADATA_SERVICE_ENDPOINT.
func NewIMDS(cfg sdk.Config) IMDS {
	return imds.NewFromConfig(cfg, func(o *imds.Options) {
		o.EnableFallback = sdk.FalseTernary
		o.HTTPClient = nil // use the package's own client, with timeouts of one second
		o.Retryer = retry.NewStandard(func(s *retry.StandardOptions) { s.MaxAttempts = metadataAttempts })
	})
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,32}$`)

// MachineID returns the instance ID of the machine that this program runs on. It fails within metadataTimeout if there
// is no metadata service.
func MachineID(ctx context.Context, metadata IMDS) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	out, err := metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: "instance-id"})
	if err != nil {
		return "", fmt.Errorf("ask the instance metadata service for this machine's ID: %w", err)
	}
	defer out.Content.Close()
	text, err := io.ReadAll(io.LimitReader(out.Content, 128))
	if err != nil {
		return "", fmt.Errorf("read this machine's ID from the instance metadata service: %w", err)
	}
	if !instanceID.Match(text) {
		return "", fmt.Errorf("the instance metadata service says that this machine's ID is %q", text)
	}
	return string(text), nil
}

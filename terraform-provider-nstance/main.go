// Command terraform-provider-nstance is the Terraform and OpenTofu provider of Nstance.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"github.com/nstance-kit/nstance/terraform-provider-nstance/internal/provider"
)

// version is set by the linker.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false,
		"run apart from the CLI, for debuggers; prints what to set TF_REATTACH_PROVIDERS to")
	flag.Parse()
	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{
		Address: "registry.terraform.io/nstance-kit/nstance",
		Debug:   *debug,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "terraform-provider-nstance:", err)
		os.Exit(1)
	}
}

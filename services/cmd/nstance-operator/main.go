// Command nstance-operator connects Cluster API with the servers of an Nstance cluster. See docs/reference/operator.md
// or --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/nstance-kit/nstance/services/internal/operator"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

// version is set at link time by a release build.
var version = "dev"

func main() { os.Exit(run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }

func run(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == operator.UninstallCommand {
		return uninstall(args[1:], getenv, stdout, stderr)
	}
	options, err := operator.ParseOptions(args, stdout)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "nstance-operator: %v\nTry nstance-operator --help.\n", err)
		return 2
	case options.Version:
		fmt.Fprintln(stdout, "nstance-operator", version)
		return 0
	}
	environment, err := settings.ParseEnvironment(getenv, settings.NamespaceFile)
	if err != nil {
		fmt.Fprintf(stderr, "nstance-operator: invalid environment (--help lists the variables):\n%v\n", err)
		return 2
	}
	file, err := settings.Load(options.ConfigFile)
	if err != nil {
		fmt.Fprintf(stderr, "nstance-operator: %v\n", err)
		return 2
	}
	log := zap.New(zap.UseFlagOptions(&options.Zap), zap.WriteTo(stderr))
	klog.SetLogger(log) // for messages of Kubernetes libraries
	kubernetes, err := config.GetConfig()
	if err != nil {
		log.Error(err,
			"no client configuration for the API server: run in a cluster, or set --kubeconfig or KUBECONFIG")
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err = operator.Run(ctx, operator.Config{Options: options, Environment: environment, Settings: file,
		Rest: kubernetes, Version: version, Log: log})
	if err != nil {
		log.Error(err, "nstance-operator failed")
		return 1
	}
	log.Info("nstance-operator stopped")
	return 0
}

// uninstall runs "nstance-operator uninstall".
func uninstall(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	options, err := operator.ParseUninstallOptions(args, stdout)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "nstance-operator: %v\nTry nstance-operator uninstall --help.\n", err)
		return 2
	}
	environment, envErr := settings.ParseEnvironment(getenv, settings.NamespaceFile)
	file, fileErr := settings.Load(options.ConfigFile)
	if err := errors.Join(envErr, fileErr); err != nil {
		fmt.Fprintf(stderr, "nstance-operator: %v\n", err)
		return 2
	}
	kubernetes, err := loadKubeconfig(options.Kubeconfig)
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		err = operator.Uninstall(ctx, kubernetes, options, environment.Namespace, file, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "nstance-operator: %v\n", err)
		return 1
	}
	return 0
}

// loadKubeconfig returns the client configuration of a kubeconfig file. If path is empty, loadKubeconfig uses the file
// in KUBECONFIG, or else the cluster that the process runs in.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path != "" {
		return clientcmd.BuildConfigFromFlags("", path)
	}
	return config.GetConfig()
}

package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nstance-kit/nstance/services/api/v1beta1"
	"github.com/nstance-kit/nstance/services/internal/operator/settings"
)

// UninstallCommand is the first argument that selects [Uninstall].
const UninstallCommand = "uninstall"

// uninstallPoll is the time after which Uninstall checks again whether objects of the Cluster are left.
const uninstallPoll = 2 * time.Second

// UninstallOptions are the command line flags of nstance-operator uninstall.
type UninstallOptions struct {
	ConfigFile string
	Kubeconfig string
	SkipShards []string
	Timeout    time.Duration
}

const uninstallUsage = `nstance-operator uninstall deletes the Cluster and waits until nothing of it is left.

The running operator deletes dynamic groups, single machines and their instances. Static groups stay at their configured
size. Run it before you remove the operator or its namespace.

Usage:
  nstance-operator uninstall [flags]

Flags:
`

// ParseUninstallOptions parses the command line after the word "uninstall". --help writes the help to out and returns
// pflag.ErrHelp.
func ParseUninstallOptions(args []string, out io.Writer) (UninstallOptions, error) {
	var o UninstallOptions
	flags := pflag.NewFlagSet("nstance-operator uninstall", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringVar(&o.ConfigFile, "config", defaultConfigFile, "path to the operator configuration `FILE`")
	flags.StringSliceVar(&o.SkipShards, "skip-shards", nil,
		"`SHARDS` that the deletion does not wait for while they do not answer")
	flags.DurationVar(&o.Timeout, "timeout", 10*time.Minute, "`TIME` after which the command fails")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "path to a kubeconfig `FILE`, outside of a cluster")
	flags.SetOutput(out)
	flags.Usage = func() { fmt.Fprint(out, uninstallUsage, flags.FlagUsagesWrapped(140)) }
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("uninstall takes no arguments, got %q", flags.Args())
	}
	return o, nil
}

// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=clusters,verbs=get;list;patch;delete
// +kubebuilder:rbac:groups=cluster.x-k8s.io,namespace=nstance-system,resources=machinepools;machines,verbs=list
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstanceclusters,verbs=get;list
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,namespace=nstance-system,resources=nstancemachinepools;nstanceshardgroups;nstancemachines,verbs=list

// Uninstall deletes the managed Cluster and waits until none of its objects is left. While it waits, it writes to out
// which objects are left.
func Uninstall(ctx context.Context, r *rest.Config, o UninstallOptions, namespace string, s settings.Config,
	out io.Writer) error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	c, err := client.New(r, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	name := v1beta1.ClusterName(s.Cluster, s.Tenant)
	if err := deleteCluster(ctx, c, client.ObjectKey{Namespace: namespace, Name: name}, o.SkipShards); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	last := ""
	for {
		left, err := describeLeft(ctx, c, namespace, name)
		if err == nil && left == "" {
			fmt.Fprintln(out, "nothing of Cluster", name, "is left")
			return nil
		}
		if err == nil && left != last {
			last = left
			fmt.Fprintln(out, left)
		}
		select {
		case <-ctx.Done():
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return fmt.Errorf("cluster %s is not deleted after %s: %s", name, o.Timeout, last)
		case <-time.After(uninstallPoll):
		}
	}
}

// deleteCluster deletes the Cluster, if it exists.
func deleteCluster(ctx context.Context, c client.Client, key client.ObjectKey, skip []string) error {
	cluster := &clusterv1.Cluster{}
	if err := c.Get(ctx, key, cluster); err != nil {
		return client.IgnoreNotFound(err)
	}
	if len(skip) > 0 {
		next := cluster.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, v1beta1.SkipShardsAnnotation, strings.Join(skip, ","))
		if err := c.Patch(ctx, next, client.MergeFrom(cluster)); err != nil {
			return fmt.Errorf("annotate Cluster %s: %w", key, err)
		}
	}
	if err := c.Delete(ctx, cluster); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Cluster %s: %w", key, err)
	}
	return nil
}

// describeLeft says which objects of the Cluster are left and what the operator waits for. It returns "" if no object
// is left.
func describeLeft(ctx context.Context, c client.Client, namespace, cluster string) (string, error) {
	var left []string
	for _, kind := range []struct {
		name string
		list client.ObjectList
	}{
		{"Clusters", &clusterv1.ClusterList{}}, {"NstanceClusters", &v1beta1.NstanceClusterList{}},
		{"MachinePools", &clusterv1.MachinePoolList{}}, {"NstanceMachinePools", &v1beta1.NstanceMachinePoolList{}},
		{"NstanceShardGroups", &v1beta1.NstanceShardGroupList{}}, {"Machines", &clusterv1.MachineList{}},
		{"NstanceMachines", &v1beta1.NstanceMachineList{}},
	} {
		if err := c.List(ctx, kind.list, client.InNamespace(namespace),
			client.MatchingLabels{clusterv1.ClusterNameLabel: cluster}); err != nil {
			return "", fmt.Errorf("list %s: %w", kind.name, err)
		}
		if n := meta.LenList(kind.list); n > 0 {
			left = append(left, fmt.Sprintf("%d %s", n, kind.name))
		}
	}
	if len(left) == 0 {
		return "", nil
	}
	text := "left: " + strings.Join(left, ", ")
	infra := &v1beta1.NstanceCluster{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: cluster}, infra); err == nil {
		if ready := meta.FindStatusCondition(infra.Status.Conditions, v1beta1.ReadyCondition); ready != nil &&
			ready.Reason == v1beta1.DeletingReason {
			return text + "; " + ready.Message, nil
		}
	}
	return text + "; the operator must be running", nil
}

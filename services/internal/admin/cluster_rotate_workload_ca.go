package admin

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/nstance-kit/nstance/services/contract/authority"
	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/store/clusterstate"
	"github.com/nstance-kit/nstance/services/store/secretstore"
)

// leastWorkloadNotice is the minimum of --notice, the time from the creation of a new workload CA until this CA issues
// certificates. Leaders look for a new CA every half an hour.
const leastWorkloadNotice = 2 * time.Hour

func (a *app) rotateWorkloadCACommand(s *secretFlags) *cobra.Command {
	var notice time.Duration
	var onlyStatus bool
	cmd := &cobra.Command{
		Use: "rotate-workload-ca", Short: "Replace the CA of the certificates in files of instances",
		Args: cobra.NoArgs,
		Long: `Replaces the workload CA, which signs the certificates in files of instances, in three
steps:

  1. make a new CA, which starts after the time of --notice. Leaders learn of it within
     half an hour and send the files that hold the workload CA, now with both CAs;
  2. from its start on, the new CA signs new and renewed certificates;
  3. after the longest life of a certificate, 90 days, remove the old CA.

Each run of "rotate-workload-ca" takes the step that is possible now, prints the time of
the next step, and returns. Run it again at that time. If you run it too early, it
changes nothing. If you run it after the last step, it begins a new rotation. You may
interrupt it, because each step is one write to the bucket.

"rotate-workload-ca" asks for a confirmation on a terminal, and needs --yes elsewhere.
With --status it changes nothing and does not ask.

Two things must happen before the new workload CA starts to sign. Services on instances
must load the files that leaders send, which have both CAs. Programs outside the instances
must trust both CAs: --output-cert writes the CAs' certificates to a file.

Before you run "rotate-workload-ca", upgrade all servers to a version that supports it.`,
		Example: `  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --yes
  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --status
  nstance-admin cluster rotate-workload-ca --storage-bucket my-bucket --status --output-cert workload-ca.crt`,
	}
	var certFile string
	cmd.Flags().DurationVar(&notice, "notice", clusterstate.WorkloadNotice, "time until a new CA issues certificates")
	cmd.Flags().BoolVar(&onlyStatus, "status", false, "change nothing: show how far a rotation is")
	cmd.Flags().StringVar(&certFile, "output-cert", "", "file to write the certificates of the trusted CAs to")
	f, confirm := outputFlag(cmd), confirmFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if notice < leastWorkloadNotice {
			return usagef("--notice %s is less than %s, in which leaders learn of a new CA", notice,
				leastWorkloadNotice)
		}
		if !onlyStatus {
			const what = "the workload CA is replaced: the step that is possible now is taken"
			if done, err := a.confirm(cmd, confirm, what); done || err != nil {
				return err
			}
		}
		cas, err := inCluster(cmd.Context(), a, s, need{key: true},
			func(ctx context.Context, c *cluster) (authority.WorkloadCAs, error) {
				if onlyStatus {
					return c.state.LoadWorkloadCAs(ctx)
				}
				cas, err := c.state.RotateWorkloadCA(ctx, notice)
				if err == nil {
					a.journalChange(ctx, c.bucket, record.ClusterEvent{Kind: "workload_ca_rotation",
						Message: "step " + describeWorkloadCAs(cas, a.Now()).Step})
				}
				return cas, err
			})
		switch {
		case errors.Is(err, secretstore.ErrNotFound):
			return withHint(err,
				"a shard's first leader makes the workload CA; check --storage-bucket and --storage-prefix")
		case errors.Is(err, clusterstate.ErrWorkloadCANew):
			return withHint(err, "run the command again after that time")
		case err != nil:
			return err
		}
		if certFile != "" {
			if err := renameio.WriteFile(certFile, cas.EncodeCertificates(), 0o644); err != nil {
				return err
			}
		}
		result := describeWorkloadCAs(cas, a.Now())
		return a.show(*f, result, func(w io.Writer) error {
			facts := []fact{{"Workload CA", result.Fingerprint}, {"Rotation", result.Step}}
			if result.Step != "none" {
				facts = append(facts, fact{"New CA", result.NewFingerprint},
					fact{"New CA issues from", stamp(result.Issues)}, fact{"Old CA can be removed", stamp(result.Ends)})
			}
			return writeFacts(w, a.style.out, facts)
		})
	}
	return cmd
}

type workloadRotation struct {
	// Step is none, announced (the old CA still issues certificates) or issued (the new CA issues certificates, and the
	// old CA is still trusted).
	Step        string `json:"step"`
	Fingerprint string `json:"ca_fingerprint"`
	// The fields below are set only during a rotation.
	NewFingerprint string    `json:"new_ca_fingerprint,omitempty"`
	Issues         time.Time `json:"issues,omitzero"`
	Ends           time.Time `json:"old_ca_removable,omitzero"`
}

func describeWorkloadCAs(cas authority.WorkloadCAs, now time.Time) workloadRotation {
	out := workloadRotation{Step: "none", Fingerprint: authority.Fingerprint(cas[0].Certificate())}
	if len(cas) > 1 {
		out.Step = "announced"
		if out.Issues = cas[1].Starts().UTC(); !now.Before(out.Issues) {
			out.Step = "issued"
		}
		out.NewFingerprint = authority.Fingerprint(cas[1].Certificate())
		out.Ends = clusterstate.WorkloadCAEnd(cas).UTC()
	}
	return out
}

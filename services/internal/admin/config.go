package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Look at, check, write and apply shard configurations",
		Long: `A shard's configuration is the object config/{shard}.jsonc in the bucket. The Terraform
provider or "config push" writes it. The shard's leader looks for it every 10 s.
"config refresh" makes the leader read it immediately.`}
	cmd.AddCommand(a.configStatusCommand(), a.configRefreshCommand(), a.configValidateCommand(), a.configPlanCommand(),
		a.configDiffCommand(), a.configHistoryCommand(), a.configPushCommand())
	return cmd
}

func (a *app) configStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show which configuration is in force", Args: cobra.NoArgs,
		Long: `Shows for each shard its leader and the configuration that the leader has applied. If the
leader refused a newer configuration, the command shows what is wrong with it.`,
		Example: `  nstance-admin config status --all-shards
  nstance-admin config status --shard us-west-2a --output yaml`,
	}
	return asks(a, cmd, fleet.Client.GetConfigStatus, &nstancev1.GetConfigStatusRequest{}, a.writeConfigStatus)
}

func (a *app) writeConfigStatus(w io.Writer, answers answers[*nstancev1.GetConfigStatusResponse]) error {
	var rows [][]cell
	for _, answer := range answers {
		if answer.Err == nil {
			rows = append(rows, a.configRow(answer))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := writeTable(w, a.style.out, []string{"SHARD", "CLUSTER", "LEADER", "TERM", "GENERATION", "ETAG",
		"MODIFIED", "SIZE", "STATE"}, rows); err != nil {
		return err
	}
	for _, answer := range answers {
		writeProblems(w, answer.Shard, answer.Message.GetProblems())
	}
	return nil
}

func (a *app) configRow(answer fleet.Answer[*nstancev1.GetConfigStatusResponse]) []cell {
	c := answer.Message
	row := plain(answer.Shard, c.GetClusterId(), c.GetLeaderId(), num(c.GetTerm()), num(c.GetGeneration()), c.GetEtag(),
		stamp(fleet.Time(c.GetLastModified())), num(c.GetSize()), "applied")
	row[8].paint = a.style.out.good
	if c.GetRefusedEtag() != "" || len(c.GetProblems()) > 0 {
		row[8].text = fmt.Sprintf("newer one refused: %d problems", len(c.GetProblems()))
		row[8].paint = a.style.out.bad
	}
	return row
}

func writeProblems(w io.Writer, shard string, problems []*nstancev1.ConfigProblem) {
	for _, p := range problems {
		text := config.Problem{File: shard, Path: p.GetPath(), Line: int(p.GetLine()), Col: int(p.GetColumn()),
			Message: p.GetMessage()}
		fmt.Fprintln(w, printable(text.String()))
	}
}

func (a *app) configRefreshCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "refresh", Short: "Have shards read and apply their configuration now", Args: cobra.NoArgs,
		Long: `Makes each shard's leader read its configuration from the bucket and apply it now. If
the configuration is not valid, nothing changes: the command shows the problems, and its
exit status is 1.`,
		Example: `  nstance-admin config refresh --all-shards`,
	}
	s, f := scopeFlags(cmd), outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.refresh(cmd.Context(), s, *f) }
	return cmd
}

func (a *app) refresh(ctx context.Context, s *scope, f format) error {
	table := func(w io.Writer, answers answers[*nstancev1.RefreshConfigResponse]) error {
		for _, answer := range answers {
			r := answer.Message
			result := strings.ToLower(strings.TrimPrefix(r.GetResult().String(), "REFRESH_RESULT_"))
			switch {
			case r.GetResult() == nstancev1.RefreshResult_REFRESH_RESULT_INVALID:
				writeProblems(w, answer.Shard, r.GetProblems())
			case answer.Err != nil:
			case r.GetRestarting():
				fmt.Fprintf(w, "%s: configuration %s (%s), the server restarts to apply it\n", answer.Shard, result,
					printable(r.GetEtag()))
			default:
				fmt.Fprintf(w, "%s: configuration %s (%s)\n", answer.Shard, result, printable(r.GetEtag()))
			}
		}
		return nil
	}
	return ask(ctx, a, s, f, "refreshing", fleet.Client.RefreshConfig, &nstancev1.RefreshConfigRequest{}, table)
}

func (a *app) configValidateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "validate FILE", Short: "Check a configuration file", Args: cobra.ExactArgs(1),
		Long: `Checks a shard configuration as the server and the Terraform provider do, and prints
everything that is wrong with it, with line and column. The check needs neither the
bucket nor a server.`,
		Example: `  nstance-admin config validate us-west-2a.jsonc
  cat us-west-2a.jsonc | nstance-admin config validate -`,
	}
	f := outputFlag(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		_, shard, problems, err := a.readConfig(args[0])
		if err != nil {
			return err
		}
		result := validation{Valid: shard != nil, Problems: []validationProblem{}}
		for _, p := range problems {
			result.Problems = append(result.Problems, validationProblem{p.Path, p.Line, p.Col, p.Message, p.Hint,
				p.Warning})
		}
		err = a.show(*f, result, func(w io.Writer) error {
			for _, p := range problems {
				fmt.Fprintln(w, p)
			}
			if shard != nil {
				fmt.Fprintf(w, "%s is valid: shard %s of cluster %s\n", args[0], shard.Server.Shard, shard.Cluster.ID)
			}
			return nil
		})
		if shard == nil {
			err = errors.Join(err, invalid(args[0], problems))
		}
		return err
	}
	return cmd
}

type validation struct {
	Valid    bool                `json:"valid"`
	Problems []validationProblem `json:"problems"`
}

type validationProblem struct {
	Path    string `json:"path,omitempty"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Warning bool   `json:"warning,omitempty"`
}

func invalid(file string, problems config.Problems) error {
	n := len(problems.Errors())
	return withHint(fmt.Errorf("%s is not a valid configuration: %d problems", file, n),
		"docs/reference/configuration.md describes every field")
}

// readConfig reads and parses a configuration from a file, or from standard input if path is "-". The shard is nil if
// the configuration is not valid.
func (a *app) readConfig(path string) ([]byte, *config.Shard, config.Problems, error) {
	body, err := a.readInput(path)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("read configuration: %w", err)
	}
	shard, problems := config.Parse(path, body)
	return body, shard, problems, nil
}

// readInput reads a file, or standard input if path is "-". It reads one byte more than a document may have, so that
// the parser reports a file that is too long.
func (a *app) readInput(path string) ([]byte, error) {
	from := a.Stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		from = file
	}
	return io.ReadAll(io.LimitReader(from, config.MaxSize+1))
}

// storageTime is the default of --storage-timeout.
const storageTime = time.Minute

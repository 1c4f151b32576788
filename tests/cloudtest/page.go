package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nstance-kit/nstance/tests/stacks/lab"
)

// page writes the result page, in the form of docs/evidence, and returns its path.
func (r *run) page(ctx context.Context, failed, cleaned error) (string, error) {
	var text strings.Builder
	where := map[string]string{"aws": "AWS", "gcp": "Google Cloud"}[r.Cloud]
	fmt.Fprintf(&text, "# %s, %s, %s\n\n", where, r.Region, r.Began.Format(time.DateOnly))
	result := "All steps passed."
	if failed != nil {
		result = "**Failed**: " + strings.SplitN(failed.Error(), "\n", 2)[0]
	}
	left := "An inventory after the run found nothing of it."
	if cleaned != nil {
		left = "**The clean-up failed**: " + strings.SplitN(cleaned.Error(), "\n", 2)[0]
	}
	fmt.Fprintf(&text, "%s %s\n\n| what | goal | measured |\n|---|---|---|\n", result, left)
	for _, m := range r.measures {
		fmt.Fprintf(&text, "| %s | %s | %s |\n", m.what, m.goal, rounded(m.took))
	}
	fmt.Fprint(&text, "\n## Steps\n\n| step | took |\n|---|---|\n")
	for _, step := range r.Steps {
		took := rounded(step.Ended.Sub(step.Began))
		if step.Error != "" {
			took += ", failed"
		}
		fmt.Fprintf(&text, "| %s | %s |\n", step.Step, took)
	}
	fmt.Fprint(&text, "\n## Versions\n\n| what | version |\n|---|---|\n")
	versions := r.versions(context.WithoutCancel(ctx))
	versions["nstance"], versions["zone"], versions["architecture"] = r.Version, r.Zone, r.Arch
	versions["go"], versions["run"] = strings.TrimPrefix(runtime.Version(), "go"), r.Name
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		fmt.Fprintf(&text, "| %s | %s |\n", name, versions[name])
	}
	file := filepath.Join(r.dir, "result.md")
	return file, os.WriteFile(file, []byte(text.String()), 0o600)
}

// versions returns the versions of the CLI and the providers, as far as the CLI knows them.
func (r *run) versions(ctx context.Context) map[string]string {
	versions := map[string]string{}
	dirs, _ := filepath.Glob(filepath.Join(r.dir, "programs", "*", "examples", r.to.example))
	for _, dir := range dirs {
		out, err := lab.Run(ctx, r.cli, "-chdir="+dir, "version", "-json")
		if err != nil {
			continue
		}
		var found struct {
			Version   string            `json:"terraform_version"`
			Providers map[string]string `json:"provider_selections"`
		}
		if json.Unmarshal([]byte(out), &found) != nil {
			continue
		}
		versions[filepath.Base(r.cli)] = found.Version
		for name, version := range found.Providers {
			versions["provider "+name[strings.Index(name, "/")+1:]] = version
		}
	}
	return versions
}

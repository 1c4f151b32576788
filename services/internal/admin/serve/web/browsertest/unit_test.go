package browsertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/dev/local"
)

// runUnit runs the commands of the systemd unit in docs/how-to/web-page.md, as systemd does. The page must then show
// the shard. The identity that the page uses must not permit a change.
func runUnit(ctx context.Context, t *testing.T, stack *local.Stack) error {
	text, err := os.ReadFile("../../../../../../docs/how-to/web-page.md")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(text), "```ini\n")
	unit, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the documentation has no unit")
	}
	bin, err := filepath.Abs(*binFlag)
	if err != nil {
		return err
	}
	unit = strings.ReplaceAll(unit, "/usr/local/bin", bin)
	verifyUnit(ctx, t, unit)

	env := map[string]string{"STATE_DIRECTORY": t.TempDir(), "NSTANCE_PAGE_SERVE": "--bind 127.0.0.1:0"}
	command := func(setting string) *exec.Cmd {
		_, line, _ := strings.Cut(strings.ReplaceAll(unit, "\\\n", " "), "\n"+setting+"=")
		line, _, _ = strings.Cut(line, "\n")
		argv := strings.Fields(os.Expand(line, func(name string) string { return env[name] }))
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the unit is ours
		cmd.Env = append(stack.Env(), "NSTANCE_ADMIN_SERVERS="+stack.AdminServers(),
			"NSTANCE_ADMIN_STORAGE_BUCKET="+local.Bucket, "NSTANCE_ADMIN_KEY_PROVIDER=env")
		return cmd
	}
	for range 2 { // a start with an identity
		if out, err := command("ExecStartPre").CombinedOutput(); err != nil {
			return fmt.Errorf("ExecStartPre: %w: %s", err, out)
		}
	}
	serve := command("ExecStart")
	stderr, err := serve.StderrPipe()
	if err != nil {
		return err
	}
	if err := serve.Start(); err != nil {
		return err
	}
	defer func() {
		_ = serve.Process.Kill() // fails if it has ended
		_, _ = io.Copy(io.Discard, stderr)
		_ = serve.Wait()
	}()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "serves "); ok {
			return checkViewersPage(ctx, t, strings.Fields(rest)[0])
		}
		t.Log(lines.Text())
	}
	return fmt.Errorf("the page did not start: %w", lines.Err())
}

// verifyUnit lets systemd check a unit, where systemd is installed.
func verifyUnit(ctx context.Context, t *testing.T, unit string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nstance-page.service")
	if err := os.WriteFile(path, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is missing: the unit is not verified")
		return
	}
	if out, err := exec.CommandContext(ctx, analyze, "verify", "--man=no", path).CombinedOutput(); err != nil ||
		len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// checkViewersPage checks that the page shows the shard, and that nothing can be changed.
func checkViewersPage(ctx context.Context, t *testing.T, url string) error {
	ask := func(method, path, body string) (status int, text string, err error) {
		req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(answer), err
	}
	for path, want := range map[string]string{"/ui/": `<td class="id">` + local.ServerName(1) + `</td>`,
		"/ui/config": "The bucket has no newer configuration."} {
		if status, text, err := ask(http.MethodGet, path, ""); err != nil || status != http.StatusOK ||
			!strings.Contains(text, want) {
			t.Errorf("%s: status %d, %v\n%s", path, status, err, text)
		}
	}
	status, text, err := ask(http.MethodPost, "/group?must_exist=true&group="+group+"&shard="+local.Shard,
		`{"size": 1}`)
	if err != nil || status != http.StatusForbidden {
		t.Errorf("a viewer changes a group: status %d, %v\n%s", status, err, text)
	}
	return nil
}

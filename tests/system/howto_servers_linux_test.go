package system

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/dev/local"
)

// pollInterval is the time between two checks of a condition.
const pollInterval = 200 * time.Millisecond

func (h *howTo) pagesAboutServers() []guide {
	return []guide{
		{file: "web-page.md", steps: []step{
			{before: func(context.Context) error {
				h.call("nstance-admin serve", "nstance-admin serve --bind 127.0.0.1:0", ":8080", "127.0.0.1:0")
				return nil
			}, until: "serves http://"},
			{},
			{before: func(ctx context.Context) error {
				_, err := h.shell(ctx, "openssl req -x509 -newkey ed25519 -nodes -subj /CN=page -days 1 "+
					"-keyout tls.key -out tls.crt", "")
				return err
			}, until: "serves https://"},
			{until: "serves http://"},
		}},
		{file: "monitor.md", check: h.checkMonitoring},
		{file: "run-servers.md", steps: []step{
			{before: h.stopStandby, until: `"msg":"ready"`},
			{before: func(context.Context) error {
				h.call("tofu output -raw server_userdata", "echo '#!/bin/sh'")
				return nil
			}, after: func(context.Context, string) error { return h.written("nstance-server-1-seed.iso") }},
			{before: func(context.Context) error {
				return os.WriteFile(h.file("proxmox-token"), []byte("token"), 0o600)
			}, after: func(context.Context, string) error { return h.written("nstance-secrets.iso") }},
		}, check: h.checkUnit},
		{file: "upgrade.md", steps: []step{
			{after: func(context.Context, string) error { return h.written("workload-ca.crt") }},
		}},
	}
}

// tracing returns the environment variable that, according to docs/how-to/monitor.md, makes the servers send traces.
func tracing(t *testing.T, url string) []string {
	text, err := read("monitor.md")
	if err != nil || len(blocks(text, "ini")) != 1 {
		t.Fatalf("monitor.md lacks the variable: %v", err)
	}
	return []string{strings.ReplaceAll(strings.TrimSpace(blocks(text, "ini")[0]), "http://collector.example.com:4318",
		url)}
}

// checkMonitoring makes promtool check the page's Prometheus configuration and the alert rules, and waits for traces.
func (h *howTo) checkMonitoring(ctx context.Context, text string) error {
	rules, err := os.ReadFile("config/prometheus/nstance.rules.yaml")
	if err != nil {
		return err
	}
	yaml := strings.ReplaceAll(blocks(text, "yaml")[0], "\n   ", "\n")
	if err := errors.Join(os.WriteFile(h.file("nstance.rules.yaml"), rules, 0o600),
		os.WriteFile(h.file("prometheus.yaml"), []byte(strings.TrimPrefix(yaml, "   ")), 0o600)); err != nil {
		return err
	}
	if _, err := h.shell(ctx, *promtoolFlag+" check config prometheus.yaml", ""); err != nil {
		return err
	}
	for h.traces.Load() == 0 {
		if err := local.Pause(ctx, pollInterval); err != nil {
			return fmt.Errorf("no trace arrives: %w", err)
		}
	}
	return nil
}

// stopStandby stops the server that does not lead. The commands of the documentation's page start another server with
// the same ports and cache.
func (h *howTo) stopStandby(ctx context.Context) error {
	leader, _, err := awaitLeaderWithHeir(ctx, h.stack)
	if err != nil {
		return err
	}
	standby := servers + 1 - leader
	if err := h.servers[standby].Stop(30 * time.Second); err != nil {
		return err
	}
	args := fmt.Sprintf("%s --instance %d --health-addr %s", h.stack.CacheDir(standby), standby,
		strings.TrimPrefix(h.stack.URL(standby, ""), "http://"))
	h.call("DIR", args, "/var/cache/nstance", args, "zone-a", local.Shard)
	return nil
}

// checkUnit runs the command line ExecStart= of the page's systemd unit. If systemd is installed, systemd-analyze
// verifies the unit. Then checkUnit starts the second server again.
func (h *howTo) checkUnit(ctx context.Context, text string) (err error) {
	unit := strings.ReplaceAll(blocks(text, "ini")[0], "/usr/local/bin", h.stack.Bin)
	_, command, _ := strings.Cut(unit, "ExecStart=")
	command, _, _ = strings.Cut(command, "\n")
	if _, err := h.shell(ctx, command, `"msg":"ready"`); err != nil {
		return err
	}
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		if err := os.WriteFile(h.file("page.service"), []byte(unit), 0o600); err != nil {
			return err
		}
		if _, err := h.shell(ctx, "systemd-analyze verify --man=no ./page.service", ""); err != nil {
			return err
		}
	}
	for n := 1; n <= servers; n++ {
		if !h.servers[n].Running() {
			if h.servers[n], err = h.stack.StartServer(ctx, n); err != nil {
				return err
			}
		}
	}
	_, _, err = awaitLeaderWithHeir(ctx, h.stack)
	return err
}

func (h *howTo) pagesAboutDisasters() []guide {
	return []guide{
		{file: "disaster-drill.md", steps: []step{
			{before: h.loseEverything, texts: []string{"instance lost", "SHARD"}},
		}},
		{file: "back-up-and-restore.md", steps: []step{
			{texts: []string{"objects of cluster " + local.Cluster, "opens the CA's key"}},
			{before: h.growAndStop, after: h.replaceObjects},
			{texts: []string{"0 problems"}},
			{before: func(ctx context.Context) error { return errors.Join(h.startServers(ctx), h.healthy(2)(ctx)) },
				texts: []string{"SHARD"}, after: h.endOrphan},
		}},
		{file: "rotate-keys.md", steps: []step{
			{},
			{before: h.pushNewKey},
			{before: h.push(func(c *config.Shard) { c.Cluster.Secrets.OldEncryptionKeys = nil }),
				after: func(context.Context, string) error {
					key, err := os.ReadFile(h.file("new.key"))
					h.key = strings.TrimSpace(string(key))
					// scripts/test.sh rotateca waits for all steps.
					h.call("rotate-ca --storage-bucket my-bucket\n", "rotate-ca --storage-bucket dev --no-wait")
					return err
				}},
			{},
			{},
			{after: func(context.Context, string) error { return h.written("workload-ca.crt") }},
		}},
	}
}

func (h *howTo) startServers(ctx context.Context) (err error) {
	for n := 1; n <= servers; n++ {
		if h.servers[n], err = h.stack.StartServer(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// loseEverything kills all servers and VMs, and starts the servers. All VMs must be replaced.
func (h *howTo) loseEverything(ctx context.Context) error {
	for n := 1; n <= servers; n++ {
		if err := h.servers[n].Kill(); err != nil {
			return err
		}
	}
	if _, err := h.stack.Tmux(ctx, "kill-server"); err != nil {
		return err
	}
	if err := h.startServers(ctx); err != nil {
		return err
	}
	return h.healthy(2)(ctx)
}

// growAndStop adds an instance to the group and stops the servers. The backup was made before and does not contain this
// instance.
func (h *howTo) growAndStop(ctx context.Context) error {
	if _, err := h.shell(ctx, "nstance-admin group scale GROUP 3 --wait", ""); err != nil {
		return err
	}
	for n := 1; n <= servers; n++ {
		if err := h.servers[n].Stop(30 * time.Second); err != nil {
			return err
		}
	}
	return nil
}

// replaceObjects replaces the objects of the bucket by those that the page's commands have unpacked from the backup.
func (h *howTo) replaceObjects(context.Context, string) error {
	bucket := h.stack.StoreDir()
	for _, name := range []string{"cluster", "config", "groups", "shard"} {
		if err := os.RemoveAll(filepath.Join(bucket, name)); err != nil {
			return err
		}
	}
	return os.CopyFS(bucket, os.DirFS(h.file("restore/objects")))
}

// endOrphan confirms the VM that the restored records do not have, and waits for its end.
func (h *howTo) endOrphan(ctx context.Context, _ string) error {
	for {
		agents, err := agentsOf(ctx, h.stack)
		if err == nil && len(agents) == 2 {
			return nil
		}
		for n := 1; n <= servers; n++ {
			if err := syscall.Kill(h.servers[n].PID, syscall.SIGUSR1); err != nil {
				return err
			}
		}
		if err := local.Pause(ctx, time.Second); err != nil {
			return fmt.Errorf("%d agents run after the restore, want 2: %w", len(agents), err)
		}
	}
}

// pushNewKey applies the page's configuration, which contains the new and the old encryption key.
func (h *howTo) pushNewKey(ctx context.Context) error {
	var page config.Shard
	if err := snippet("rotate-keys.md", &page, "/etc/nstance/new.key", h.file("new.key")); err != nil {
		return err
	}
	return h.push(func(c *config.Shard) {
		c.Cluster.Secrets.EncryptionKey = page.Cluster.Secrets.EncryptionKey
		c.Cluster.Secrets.OldEncryptionKeys = page.Cluster.Secrets.OldEncryptionKeys
	})(ctx)
}

package machine_test

import (
	"strings"
	"testing"
)

// TestConsole runs two services. Only the first writes its output also to the console (journal+console). The first
// service may read the journal, because its unit sets a supplementary group.
func TestConsole(t *testing.T) {
	w := newTestRunner(t, map[string]string{
		"etc/systemd/system/quiet.service": "[Service]\nRestart=always\nRestartSec=1h\n" +
			"ExecStart=/bin/echo quiet-service-speaks\n",
		"etc/systemd/system/loud.service": "[Service]\nRestart=always\nRestartSec=1h\nUser=nobody\n" +
			"StandardOutput=journal+console\nSupplementaryGroups=systemd-journal\n" +
			"ExecStart=/usr/bin/journalctl -u quiet -o cat -n 20 --no-pager\n",
	})
	id := w.start("vpc-a", 30, "#!/bin/sh\necho the-script-speaks\nsystemctl start quiet\n")
	w.eventually(id, booted, "yes")
	m, ok := w.Machine(id)
	if !ok {
		t.Fatal("there is no machine")
	}
	console := func() string { return string(m.Console()) }
	if text := console(); !strings.Contains(text, "the-script-speaks\r\n") ||
		strings.Contains(text, "quiet-service-speaks") {
		t.Errorf("console:\n%s", text)
	}
	w.eventually(id, "journalctl -u quiet -o cat | grep -c quiet-service-speaks", "1")
	w.run(id, "systemctl start --no-block loud")
	w.eventually(id, "journalctl -u loud -o cat | grep -c quiet-service-speaks", "1")
	w.eventually(id, "journalctl -o cat | grep -c '^quiet-service-speaks'", "3")
	if text := console(); !strings.Contains(text, "quiet-service-speaks\r\n") {
		t.Errorf("console:\n%s", text)
	}
}

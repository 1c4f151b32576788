package machine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/render"
)

// repository is the root of this repository.
const repository = "../../.."

// fakeAgent is what the test program does under the name /usr/local/bin/nstance-agent. It prints the variables and
// files that a real agent reads, and then runs as a service that is ready.
func fakeAgent() {
	for _, name := range []string{"NSTANCE_INSTANCE_ID", "NSTANCE_INSTANCE_KIND", "NSTANCE_SERVER_REGISTRATION_ADDR",
		"NSTANCE_SERVER_AGENT_ADDR"} {
		fmt.Printf("%s=%s\n", name, os.Getenv(name))
	}
	for _, name := range []string{"ca.crt", "nonce.jwt"} {
		fmt.Printf("%s: %s\n", name, must(os.ReadFile(filepath.Join("/opt/nstance-agent/identity", name))))
	}
	daemon()
}

// TestExampleBootScripts boots a machine with each example boot script and with the one in docs/how-to/boot-script.md,
// unmodified. Each machine has the systemd unit of the agent's images. The started agent must find the environment
// variables and the identity files that a real agent needs.
func TestExampleBootScripts(t *testing.T) {
	unit := must(os.ReadFile(filepath.Join(repository, "images/packer/files/nstance-agent.service")))
	for _, path := range []string{"examples/userdata-tmux.sh.tmpl", "examples/local/userdata.sh.tmpl",
		"docs/how-to/boot-script.md"} {
		t.Run(path, func(t *testing.T) {
			w := newTestRunner(t, map[string]string{"etc/systemd/system/nstance-agent.service": string(unit)})
			w.with("nstance-agent")
			data := render.Sample()
			data.Instance.ID, data.Instance.Kind = "wrk06a1cw4xn2jw7c9z2h4q8k0r", "wrk"
			data.Server.RegistrationAddr, data.Server.AgentAddr = "10.0.1.100:8992", "10.0.1.100:8994"
			data.Cluster.CACert = "the CA's certificate"
			text := string(must(os.ReadFile(filepath.Join(repository, path))))
			if filepath.Ext(path) == ".md" {
				_, text, _ = strings.Cut(text, "```sh\n")
				text, _, _ = strings.Cut(text, "```")
			}
			compiled, err := render.CompileUserdata("userdata", text)
			if err != nil {
				t.Fatal(err)
			}
			userdata, err := compiled.Execute(data, "nonce.of.jwt")
			if err != nil {
				t.Fatal(err)
			}
			id := w.start("vpc-a", 30, userdata)
			w.eventually(id, booted, "yes")
			w.eventually(id, "systemctl is-active nstance-agent", "active")
			log := w.run(id, "journalctl -u nstance-agent -o cat") + "\n"
			for _, line := range []string{
				"NSTANCE_INSTANCE_ID=wrk06a1cw4xn2jw7c9z2h4q8k0r", "NSTANCE_INSTANCE_KIND=wrk",
				"NSTANCE_SERVER_REGISTRATION_ADDR=10.0.1.100:8992", "NSTANCE_SERVER_AGENT_ADDR=10.0.1.100:8994",
				"ca.crt: the CA's certificate", "nonce.jwt: nonce.of.jwt",
			} {
				if !strings.Contains(log, line+"\n") {
					t.Errorf("the agent did not read %q:\n%s", line, log)
				}
			}
		})
	}
}

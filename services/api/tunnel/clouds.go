package tunnel

import (
	"encoding/json"
	"regexp"
)

// clouds are the kinds of way that use the tools of a cloud. A new cloud may add its own.
var clouds = map[string]kind{
	"ssm": {
		target:  "INSTANCE",
		form:    "INSTANCE or REGION/INSTANCE, such as i-0123456789abcdef0",
		pattern: regexp.MustCompile(`^(?:([a-z]{2}[a-z0-9-]+-[0-9]+)/)?(m?i-[0-9a-f]+)$`),
		command: func(target []string, host, port string) []string {
			// Marshal cannot fail for texts.
			parameters, _ := json.Marshal(map[string][]string{"host": {host}, "portNumber": {port}})
			args := []string{"aws", "ssm", "start-session", "--target", target[2], "--document-name",
				"AWS-StartPortForwardingSessionToRemoteHost", "--parameters", string(parameters)}
			if target[1] != "" {
				args = append(args, "--region", target[1])
			}
			return args
		},
		// Without a localPortNumber, the Session Manager plugin chooses a port, and prints it in this line.
		opened:  regexp.MustCompile(`^Port ([0-9]{1,5}) opened for sessionId`),
		env:     []string{"SSM_PLUGIN_LOCAL_HOST=127.0.0.1"},
		install: "install the AWS CLI and its Session Manager plugin",
		advice: "does `aws ssm start-session --target INSTANCE` work? If it asks for a code, run `aws sts " +
			"get-caller-identity` first",
	},
	"iap": {
		target:  "INSTANCE",
		form:    "INSTANCE, ZONE/INSTANCE or PROJECT/ZONE/INSTANCE",
		pattern: regexp.MustCompile(`^(?:(?:([a-z0-9][a-z0-9.:-]*)/)?([a-z0-9][a-z0-9-]*)/)?([a-z0-9][a-z0-9-]*)$`),
		// The tunnel ends at the instance's own address, whatever the host is.
		command: func(target []string, _, port string) []string {
			args := []string{"gcloud", "compute", "start-iap-tunnel", target[3], port, "--listen-on-stdin", "--quiet",
				"--verbosity=error"}
			if target[2] != "" {
				args = append(args, "--zone="+target[2])
			}
			if target[1] != "" {
				args = append(args, "--project="+target[1])
			}
			return args
		},
		install: "install the Google Cloud CLI",
		advice: "INSTANCE must be the machine of the leader, and the firewall must permit 35.235.240.0/20; does " +
			"`gcloud compute start-iap-tunnel INSTANCE 8993` work?",
	},
}

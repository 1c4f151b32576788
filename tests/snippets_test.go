package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

// snippetBase is the configuration into which the test merges the snippets from the pages.
const snippetBase = `{
	"cluster": {"id": "example", "secrets": {"encryption_key": {"provider": "env"}}},
	"server": {"shard": "us-west-2a", "subnet_pools": {"workers": ["subnet-0a1b2c3d4e5f60718"]},
		"provider": {"kind": "aws", "region": "us-west-2", "zone": "us-west-2a"},
		"bind": {"health_addr": ":8990", "election_addr": "10.0.0.10:8991", "registration_addr": "10.0.0.10:8992",
			"operator_addr": "10.0.0.10:8993", "agent_addr": "10.0.0.10:8994"}},
	"images": {"agent": {"provider": "aws", "owners": ["self"],
		"filters": [{"name": "name", "values": ["nstance-agent-*"]}]}},
	"templates": {
		"web": {"kind": "web", "arch": "arm64", "subnet_pool": "workers", "instance_type": "t4g.small",
			"args": {"ImageId": "{{ .Image.agent }}"}, "userdata": {"content": "#!/bin/sh\n# {{ .Nonce }}\n"}},
		"worker": {"kind": "wrk", "arch": "arm64", "subnet_pool": "workers", "instance_type": "t4g.small",
			"args": {"ImageId": "{{ .Image.agent }}"}, "userdata": {"content": "#!/bin/sh\n# {{ .Nonce }}\n"}}},
	"groups": {"default": {"web": {"template": "web", "size": 5}}}
}`

// TestSnippetsAreValid verifies that the snippets of configuration on pages of docs/how-to are valid. A snippet has
// either sections of the configuration, or fields of a group.
func TestSnippetsAreValid(t *testing.T) {
	base, problems := config.ParseTree("base", []byte(snippetBase))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob("../docs/how-to/*.md")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for n, block := range strings.Split(string(text), "```") {
			code, ok := strings.CutPrefix(block, "jsonc\n")
			if n%2 == 0 || !ok {
				continue
			}
			checked++
			parsed, problems := config.ParseTree(path, []byte("{"+code+"}"))
			if err := problems.Err(); err != nil {
				t.Errorf("%v", err)
				continue
			}
			snippet, _ := parsed.(map[string]any)
			section := false
			for name := range snippet {
				_, found := base.(map[string]any)[name]
				section = section || found
			}
			if !section {
				snippet = map[string]any{"groups": map[string]any{"default": map[string]any{"web": snippet}}}
			}
			merged, err := json.Marshal(merge(base, snippet))
			if err != nil {
				t.Fatal(err)
			}
			if _, problems := config.Parse(path, merged); len(problems) > 0 {
				t.Errorf("%v\nof the snippet\n%s", problems, code)
			}
		}
	}
	if checked < 5 {
		t.Errorf("found %d snippets", checked)
	}
}

// merge merges two JSON values, of which the second takes precedence. If both are objects, it merges them field by
// field. Otherwise it returns the second.
func merge(below, over any) any {
	old, isOld := below.(map[string]any)
	values, isObject := over.(map[string]any)
	if !isOld || !isObject {
		return over
	}
	merged := map[string]any{}
	for name, value := range old {
		merged[name] = value
	}
	for name, value := range values {
		merged[name] = merge(merged[name], value)
	}
	return merged
}

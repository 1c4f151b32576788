package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestImageCommand checks the command line of Packer for a run on each cloud, with a stand-in for Packer and Go.
func TestImageCommand(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"packer": "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\n",
		"go":     "#!/bin/sh\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		record record
		images []string
		want   string
	}{
		{record{Name: "ct-1234", Cloud: "aws", Arch: "arm64"}, []string{"-var", "aws_region=eu-west-1"},
			"build -only=amazon-ebs.* -var role=agent -var arch=arm64 -color=false -var run=ct-1234 " +
				"-var aws_region=eu-west-1 ."},
		{record{Name: "ct-1234", Cloud: "gcp", Arch: "amd64"}, []string{"-var", "x=y"},
			"build -only=googlecompute.* -var role=agent -var arch=amd64 -color=false -var run=ct-1234 -var x=y ."},
	} {
		r := &run{record: &c.record, to: &target{images: func(*record) []string { return c.images }}}
		if out, err := r.imageCommand("agent").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		got := lines[len(lines)-1]
		// The paths and the version differ.
		before, rest, _ := strings.Cut(got, " -var version=")
		_, after, _ := strings.Cut(rest, " -color")
		if got := before + " -color" + after; got != c.want || lines[0] != "init ." {
			t.Errorf("packer %s\nwant %s", got, c.want)
		}
	}
}

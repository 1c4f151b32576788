package modules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// wording matches attributes of Terraform whose text only people read, and comments.
var wording = regexp.MustCompile(`^\s*(#|description\s*=|error_message\s*=)`)

// TestPartitionsAreNotFixed checks that no module or example for AWS names a partition. The data source aws_partition
// has the one of the present region.
func TestPartitionsAreNotFixed(t *testing.T) {
	files := 0
	for _, root := range []string{"modules/aws", "examples/aws"} {
		err := filepath.WalkDir(filepath.Join("..", "..", root), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && (entry.Name() == "tests" || entry.Name() == ".terraform") {
				if err == nil {
					err = fs.SkipDir
				}
				return err
			}
			if entry.IsDir() || filepath.Ext(path) != ".tf" {
				return nil
			}
			files++
			text, err := os.ReadFile(path)
			for i, line := range strings.Split(string(text), "\n") {
				if strings.Contains(line, "arn:aws") && !wording.MatchString(line) {
					t.Errorf("%s:%d: %s", path, i+1, line)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 20 {
		t.Errorf("only %d files were read", files)
	}
}

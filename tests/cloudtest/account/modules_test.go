package account_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/tests/cloudtest/account"
)

var resourceBlock = regexp.MustCompile(`(?m)^resource "([a-z0-9_]+)"`)

// TestModuleResources checks that the inventory of an account has everything that the modules of its cloud can make,
// and that the tables name nothing else.
func TestModuleResources(t *testing.T) {
	_, onAWS := newAWS(t)
	_, onGCP := newGCP(t)
	unused := map[string]bool{}
	for _, table := range []map[string]string{account.ModuleResources, account.WithoutKind} {
		for name := range table {
			unused[name] = true
		}
	}
	for cloud, kinds := range map[string][]string{"aws": onAWS.Kinds(), "gcp": onGCP.Kinds()} {
		files := 0
		dir := filepath.Join("..", "..", "..", "modules", cloud)
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".tf") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			files++
			for _, found := range resourceBlock.FindAllSubmatch(text, -1) {
				name := string(found[1])
				delete(unused, name)
				kind, listed := account.ModuleResources[name]
				_, excepted := account.WithoutKind[name]
				switch {
				case listed == excepted:
					t.Errorf("%s makes %s: it needs a kind of the inventory in ModuleResources, or a reason in "+
						"WithoutKind", path, name)
				case listed && !slices.Contains(kinds, kind):
					t.Errorf("%s makes %s: the inventory of %s has no kind %q", path, name, cloud, kind)
				}
			}
			return nil
		}); err != nil || files < 10 {
			t.Errorf("%s has %d files, %v", dir, files, err)
		}
	}
	for name := range unused {
		t.Errorf("no module makes %s: delete it from the table", name)
	}
}

package support

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write words.txt")

// TestWords checks that words.txt has most words of today's documents and messages. A few words may be missing, so that
// words.txt need not change with every new word in a document.
func TestWords(t *testing.T) {
	want := repositoryWords(t)
	if *update {
		if err := os.WriteFile("words.txt", []byte(strings.Join(want, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have := strings.Fields(wordList)
	if !slices.IsSorted(have) || len(have) < 2000 {
		t.Errorf("words.txt has %d words, sorted: %t", len(have), slices.IsSorted(have))
	}
	for _, word := range have {
		if !regexp.MustCompile(`^([a-z]{1,20}|[a-z]{1,6}[0-9]{1,3})$`).MatchString(word) {
			t.Errorf("%q is no word", word)
		}
	}
	missing := slices.DeleteFunc(want, func(word string) bool { return vocabulary()[word] })
	if len(missing) > len(have)/20 {
		t.Errorf("words.txt lacks %d words, such as %v; this adds them: go test "+
			"./services/internal/admin/support -run TestWords -update", len(missing), missing[:10])
	}
}

// repositoryWords returns the words that occur in string literals of programs, or more than once in documents.
func repositoryWords(t *testing.T) []string {
	t.Helper()
	const root = "../../../.."
	counts := map[string]int{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (strings.HasPrefix(name, ".") || strings.HasSuffix(name, "test") ||
			slices.Contains([]string{"testdata", "temp", "bin", "tests", "node_modules"}, name)):
			return fs.SkipDir
		case strings.HasSuffix(name, "_test.go"):
		case filepath.Ext(name) == ".md":
			text, err := os.ReadFile(path)
			countWords(counts, string(text))
			return err
		case filepath.Ext(name) == ".go":
			return countLiterals(counts, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for word, n := range counts {
		if n > 1 && (len(word) > 1 || strings.Contains("aist", word)) {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return words
}

func countLiterals(counts map[string]int, path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				countWords(counts, text)
				countWords(counts, text) // one occurrence in a message is enough
			}
		}
		return true
	})
	return nil
}

var (
	alphanumeric = regexp.MustCompile(`[A-Za-z0-9]+`)
	letters      = regexp.MustCompile(`^[A-Za-z]+$`)
	numbered     = regexp.MustCompile(`^[A-Za-z]{1,6}[0-9]{1,3}$`) // such as IPv4
)

// countWords counts the words of a text. IDs and keys are no words.
func countWords(counts map[string]int, text string) {
	for _, found := range alphanumeric.FindAllString(text, -1) {
		switch {
		case numbered.MatchString(found):
			counts[strings.ToLower(found)]++
		case letters.MatchString(found):
			for _, word := range strings.Fields(capital.ReplaceAllString(found, "$1$3 $2$4")) {
				if len(word) <= 20 {
					counts[strings.ToLower(word)]++
				}
			}
		}
	}
}

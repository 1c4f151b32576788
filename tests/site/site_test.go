// Package site checks the static site that scripts/test.sh site builds from docs/.
package site

import (
	"context"
	"encoding/json"
	"flag"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/net/html"
)

var (
	site     = flag.String("site", "", "directory of the site; without it the tests check nothing and say so")
	chromium = flag.String("chromium", "", "path of Chromium, which TestSearch needs")
)

// repository is the prefix of links to the repository's files. Pages of the site use such links for files that are not
// part of the site.
const repository = "https://github.com/nstance-kit/nstance/blob/main/"

// page is the part of an HTML page that the checks need.
type page struct {
	links []string // The values of href and src.
	ids   map[string]bool
	title string
}

func read(t *testing.T) map[string]page {
	t.Helper()
	pages := map[string]page{}
	if *site == "" {
		t.Log("run by scripts/test.sh site, which builds the site")
		return pages
	}
	err := filepath.WalkDir(*site, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".html" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		root, err := html.Parse(file)
		if err != nil {
			return err
		}
		p := page{ids: map[string]bool{}}
		for node := range root.Descendants() {
			if node.Data == "title" && node.FirstChild != nil {
				p.title = node.FirstChild.Data
			}
			for _, attribute := range node.Attr {
				switch attribute.Key {
				case "href", "src":
					p.links = append(p.links, attribute.Val)
				case "id":
					p.ids[attribute.Val] = true
				}
			}
		}
		pages[path] = p
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 30 {
		t.Fatalf("found %d pages", len(pages))
	}
	return pages
}

// TestLinks verifies that every link within the site leads to a file. If the link has a fragment, the file must have an
// element with this ID. Links to the repository must lead to files that exist.
func TestLinks(t *testing.T) {
	pages := read(t)
	links := 0
	for path, p := range pages {
		for _, link := range p.links {
			links++
			target, err := url.Parse(link)
			if err != nil {
				t.Errorf("%s: link %q: %v", path, link, err)
				continue
			}
			if file, ok := strings.CutPrefix(link, repository); ok {
				file, _, _ = strings.Cut(file, "#")
				if _, err := os.Stat(filepath.Join("../..", file)); err != nil {
					t.Errorf("%s links to the repository's %s, which does not exist", path, file)
				}
				continue
			}
			if target.Scheme != "" {
				continue
			}
			file := path
			if target.Path != "" {
				file = filepath.Join(filepath.Dir(path), filepath.FromSlash(target.Path))
			}
			if info, err := os.Stat(file); err == nil && info.IsDir() {
				file = filepath.Join(file, "index.html")
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, link)
				continue
			}
			if to, ok := pages[file]; ok && target.Fragment != "" && !to.ids[target.Fragment] {
				t.Errorf("%s links to %s, but no element there has that ID", path, link)
			}
		}
	}
	t.Logf("%d links of %d pages", links, len(pages))
}

// TestSearchIndex verifies the index of the search. Every page must have an entry with a title and text, except pages
// that only list the pages in their directory.
func TestSearchIndex(t *testing.T) {
	pages := read(t)
	if len(pages) == 0 {
		return
	}
	raw, err := os.ReadFile(filepath.Join(*site, "search.json"))
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ ID, Title, Headings, Text string }
	if err := json.Unmarshal(raw, &entries); err != nil {
		t.Fatal(err)
	}
	indexed := map[string]bool{}
	for _, entry := range entries {
		if entry.Title == "" || len(entry.Text) < 100 {
			t.Errorf("the entry of %s has the title %q and %d bytes of text", entry.ID, entry.Title, len(entry.Text))
		}
		parts := strings.Split(strings.Trim(entry.ID, "/"), "/")
		for i := range parts { // The base path of the published site is not part of the directory.
			file := filepath.Join(*site, filepath.Join(parts[i:]...), "index.html")
			if p, ok := pages[file]; ok && strings.HasPrefix(p.title, entry.Title) {
				indexed[file] = true
			}
		}
	}
	for file, p := range pages {
		if p.title == "" {
			t.Errorf("%s has no title", file)
		}
		below, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*", "index.html"))
		if err != nil {
			t.Fatal(err)
		}
		if !indexed[file] && len(below) == 0 {
			t.Errorf("the search does not find %s", file)
		}
	}
}

// TestSearch types into the search field in Chromium and follows the first result.
func TestSearch(t *testing.T) {
	if *site == "" || *chromium == "" {
		t.Log("run by scripts/test.sh site where Chromium is installed")
		return
	}
	server := httptest.NewServer(http.FileServer(http.Dir(*site)))
	defer server.Close()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(*chromium), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()))
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	defer endAllocator()
	ctx, end := chromedp.NewContext(allocator)
	defer end()
	timer := time.AfterFunc(time.Minute, end)
	defer timer.Stop()
	if err := chromedp.Do(ctx, chromedp.Navigate(server.URL+"/reference/aws/"),
		chromedp.SendKeys(chromedp.CSS("#query"), "roll out carefully"),
		chromedp.WaitVisible(chromedp.CSS("#results a")),
		chromedp.SendKeys(chromedp.CSS("#query"), "\n"),
		chromedp.WaitVisible(chromedp.CSS("nav a[aria-current][href$='roll-out/']"))); err != nil {
		t.Fatal(err)
	}
}

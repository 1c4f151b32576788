// Package tests checks what concerns the whole repository, such as imports, links in documents and the changelog.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/nstance-kit/nstance/services/contract/cloud/all"
)

const module = "github.com/nstance-kit/nstance/"

// wings lists the folders of the programs' code from the bottom to the top, one line each. A package may import packages
// of the wings above its own line, and of its own wing those in its own row and in the rows before (a bar ends a row).
// A name in a row includes the packages below it. The programs do not import each other, but for what [shared] lists.
var wings = []struct{ folder, rows string }{
	{"services/contract", "ident jsonpointer pasted reconnect suggest highwater | cloud | " +
		"keys render record endpoints | config | bootscript envelope authority contexts"},
	{"services/store", "awscloud googlecloud | objstore | secretstore keyring | clusterstate"},
	{"services/api", "nstance notleader messages tunnel operatorclient v1beta1"},
	{"services/dev", "local libvirtd"},
	{"services/internal/daemon", "tasks systemd"},
	{"services/internal/server", "plan lead/election filegen externalmetric health watch | " +
		"infra lead shardconfig serve/transport | shardstate act journal metrics | serve"},
	{"services/internal/agent", "loopback folder identity keypair machine notice receiver | check | number"},
	{"services/internal/operator", "cluster drain identity machine ondemand pool report scope settings shards"},
	{"services/internal/admin", "snapshot support fleet lastknown | serve"},
	{"services/internal/dev", "devtool httpserver k8s s3"},
	{"services/internal/proof", "mutate plantest fleettest foldertest identitytest sim bench histories"},
	{"services/cmd", ""},
}

// programs are the wings that stand beside each other.
var programs = []string{"services/internal/server", "services/internal/agent", "services/internal/operator",
	"services/internal/admin", "services/internal/dev"}

// shared lists what programs import of each other: the admin CLI looks for a cluster's VMs with the server's providers.
var shared = []string{"services/internal/server/infra"}

// pkg is what `go list` prints about a package, without the module's own path at the start of import paths.
type pkg struct {
	ImportPath                                        string
	GoFiles, Imports, TestImports, XTestImports, Deps []string
}

func (p pkg) all() []string { return slices.Concat(p.Imports, p.TestImports, p.XTestImports) }

// within reports whether path is one of the packages, or a package below one of them.
func within(path string, packages ...string) bool {
	return slices.ContainsFunc(packages, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

func ours(path string) bool { return within(path, "services", "terraform-provider-nstance", "tests") }

// place returns the number of a package's wing and its row in it, both -1 if it has none. The package of a wing's own
// folder comes after all rows.
func place(path string) (wing, row int) {
	for i, w := range wings {
		if !within(path, w.folder) {
			continue
		}
		rows := strings.Split(w.rows, " | ")
		if path == w.folder || w.rows == "" {
			return i, len(rows)
		}
		longest := 0
		row = -1
		for r, names := range rows {
			for _, name := range strings.Fields(names) {
				if within(path, w.folder+"/"+name) && len(name) > longest {
					row, longest = r, len(name)
				}
			}
		}
		return i, row
	}
	return -1, -1
}

// rule returns the violations of one package.
type rule func(p pkg) (complaints []string)

// direction forbids a package to import what [wings] puts beside or after it. It ignores the imports in test files.
func direction(p pkg) (complaints []string) {
	if !within(p.ImportPath, "services") {
		return nil
	}
	wing, row := place(p.ImportPath)
	if row < 0 {
		return []string{"has no place in the order of imports: give it one in wings"}
	}
	for _, path := range p.Imports {
		if !ours(path) {
			continue
		}
		theirs, theirRow := place(path)
		switch apart := theirs != wing && within(path, programs...) && within(p.ImportPath, programs...); {
		case within(path, "services/cmd"), !within(path, "services"):
			complaints = append(complaints, "imports the program "+path)
		case theirs > wing, apart && !within(path, shared...):
			complaints = append(complaints, "imports "+path+" of another wing")
		case theirs == wing && theirRow > row:
			complaints = append(complaints, "imports "+path+", which is in a later row")
		}
	}
	return complaints
}

// only returns a rule: from this module, the package subject may import only the allowed packages. An allowed package
// does not include the packages below it.
func only(subject string, allowed ...string) rule {
	return func(p pkg) (complaints []string) {
		if p.ImportPath != subject {
			return nil
		}
		for _, path := range p.Imports {
			if ours(path) && !slices.Contains(allowed, path) {
				complaints = append(complaints, "imports "+path+"; of ours it may have only "+
					strings.Join(allowed, ", "))
			}
		}
		return complaints
	}
}

// never returns a rule: neither subject, nor a package below it, nor their tests may import a forbidden package.
func never(subject string, forbidden ...string) rule {
	return func(p pkg) (complaints []string) {
		if !within(p.ImportPath, subject) {
			return nil
		}
		for _, path := range p.all() {
			if within(path, forbidden...) {
				complaints = append(complaints, "imports "+path)
			}
		}
		return complaints
	}
}

// unlinked returns a rule: a program may not import a forbidden package, neither directly nor through other packages.
func unlinked(program string, forbidden ...string) rule {
	return func(p pkg) (complaints []string) {
		if !within(p.ImportPath, program) {
			return nil
		}
		for _, path := range p.Deps {
			if within(path, forbidden...) {
				complaints = append(complaints, "links "+path)
			}
		}
		return complaints
	}
}

// providers forbids imports of concrete providers, except in packages that put a program together.
func providers(p pkg) (complaints []string) {
	if within(p.ImportPath, "services/internal/proof", "services/cmd/nstance-server", "services/cmd/nstance-admin") ||
		p.ImportPath == "services/internal/server" {
		return nil
	}
	for _, path := range p.Imports {
		if within(path, "services/internal/server/infra") && path != "services/internal/server/infra" &&
			path != "services/internal/server/infra/infratest" && path != "services/internal/server/infra/nocloud" &&
			!within(p.ImportPath, path) {
			complaints = append(complaints, "imports the provider "+path)
		}
	}
	return complaints
}

// purePackages make decisions and have no side effects. They get the time and all events as arguments.
var purePackages = []string{"services/internal/server/plan", "services/internal/server/lead/election"}

// pure keeps I/O, clocks, randomness and concurrency out of the pure packages. Their tests may use everything.
func pure(p pkg) (complaints []string) {
	if !slices.Contains(purePackages, p.ImportPath) {
		return nil
	}
	for _, path := range []string{"context", "io", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand", "net",
		"net/http", "os", "os/exec", "runtime", "sync", "sync/atomic", "syscall"} {
		if slices.Contains(p.Imports, path) {
			complaints = append(complaints, "imports "+path)
		}
	}
	for _, file := range p.GoFiles {
		text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(p.ImportPath), file))
		if err != nil {
			return append(complaints, err.Error())
		}
		complaints = append(complaints, impurities(file, text)...)
	}
	return complaints
}

// impurities returns the statements of a file that start goroutines, use channels, or read the clock.
func impurities(name string, text []byte) (complaints []string) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return []string{err.Error()}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		complaint := ""
		switch n := n.(type) {
		case *ast.GoStmt:
			complaint = "starts a goroutine"
		case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			complaint = "uses a channel"
		case *ast.SelectorExpr:
			clock := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clock, n.Sel.Name) {
				complaint = "calls time." + n.Sel.Name
			}
		}
		if complaint != "" {
			complaints = append(complaints, complaint+" at "+files.Position(n.Pos()).String())
		}
		return true
	})
	return complaints
}

var rules = map[string]rule{
	"direction":          direction,
	"concrete providers": providers,
	"plan: ident, config, record and reconnect": only("services/internal/server/plan", "services/contract/ident",
		"services/contract/config", "services/contract/record", "services/contract/reconnect"),
	"election: record and the store's tokens": only("services/internal/server/lead/election", "services/store/objstore",
		"services/contract/reconnect", "services/contract/record"),
	"plan and election are pure":     pure,
	"render knows texts, not config": only("services/contract/render"),
	"contract stands alone": never("services/contract", "services/store", "services/internal", "services/cmd",
		"services/api"),
	"store":                   never("services/store", "services/internal", "services/cmd", "services/api"),
	"tests: contract and api": never("tests", "services/internal", "services/cmd", "terraform-provider-nstance"),
	"provider: contract":      never("terraform-provider-nstance", "services/internal", "services/cmd"),
	"commands hold no test code": unlinked("services/cmd", "testing", "services/internal/proof/sim",
		"services/internal/server/infra/infratest", "services/internal/server/infra/mock",
		"services/internal/proof/plantest",
		"services/internal/proof/mutate"),
	"the provider holds no test code": exactly("terraform-provider-nstance",
		unlinked("terraform-provider-nstance", "github.com/hashicorp/terraform-plugin-testing",
			"terraform-provider-nstance/internal/acctest")),
	"the agent cannot change a cloud": unlinked("services/cmd/nstance-agent",
		"github.com/aws", "cloud.google.com", "google.golang.org/api", "github.com/Azure", "k8s.io", "sigs.k8s.io",
		"services/internal/server/infra", "services/internal/server/plan", "services/internal/server/act/execute",
		"services/internal/server/lead/lease",
		"services/internal/server/lead/election", "services/store/objstore", "services/store/secretstore",
		"services/store/clusterstate"),
	// TestProviderReadsScalingGroups is for the SDK of Auto Scaling, of which the provider uses only reading calls.
	"the Terraform provider cannot change a cloud": unlinked("terraform-provider-nstance",
		"github.com/aws/aws-sdk-go-v2/service/ec2", "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2",
		"google.golang.org/api/compute"),
	"modules with advisories that docs/concepts/security.md names": unlinked("services/cmd",
		"golang.org/x/crypto/openpgp", "github.com/ulikunitz/xz", "github.com/go-jose",
		"github.com/hashicorp/go-getter"),
	"no Kubernetes but in the operator": unlinkedExcept("services/cmd",
		[]string{"services/cmd/nstance-operator", "services/cmd/dev-k8s"},
		"k8s.io", "sigs.k8s.io/controller-runtime", "sigs.k8s.io/cluster-api"),
}

// exactly returns a rule that applies the rule `look` to one package, but not to the packages below it.
func exactly(subject string, look rule) rule {
	return func(p pkg) []string {
		if p.ImportPath != subject {
			return nil
		}
		return look(p)
	}
}

// unlinkedExcept returns the rule [unlinked] for the packages below `programs`, except those in `except`.
func unlinkedExcept(programs string, except []string, forbidden ...string) rule {
	look := unlinked(programs, forbidden...)
	return func(p pkg) []string {
		if within(p.ImportPath, except...) {
			return nil
		}
		return look(p)
	}
}

// sdkNames matches names of the package autoscaling, and calls of its client.
var sdkNames = regexp.MustCompile(`\bautoscaling\.(\w+)|\.client\.(\w+)\(`)

// TestProviderReadsScalingGroups checks that the Terraform provider changes nothing with the SDK of Auto Scaling: only
// one package imports the SDK, and it uses only calls that describe.
func TestProviderReadsScalingGroups(t *testing.T) {
	const sdk, user = "github.com/aws/aws-sdk-go-v2/service/autoscaling",
		"terraform-provider-nstance/internal/client/machinegroup/aws"
	for _, p := range list(t) {
		if !within(p.ImportPath, "terraform-provider-nstance") || !slices.Contains(p.Imports, sdk) {
			continue
		}
		if p.ImportPath != user {
			t.Errorf("%s imports %s, which only %s may", p.ImportPath, sdk, user)
		}
		for _, name := range p.GoFiles {
			text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(p.ImportPath), name))
			if err != nil {
				t.Fatal(err)
			}
			for _, used := range sdkNames.FindAllSubmatch(text, -1) {
				word := string(used[1]) + string(used[2])
				if !strings.HasPrefix(word, "Describe") && word != "Client" && word != "NewFromConfig" {
					t.Errorf("%s uses %s of %s, which may change a cloud", p.ImportPath, word, sdk)
				}
			}
		}
	}
}

func TestImports(t *testing.T) {
	packages := list(t)
	if len(packages) < 30 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	for name, rule := range rules {
		for _, p := range packages {
			for _, complaint := range rule(p) {
				t.Errorf("%s: %s %s", name, p.ImportPath, complaint)
			}
		}
	}
}

// TestRooms keeps the drawing of imports readable: it counts folders, with `internal` opened one level.
func TestRooms(t *testing.T) {
	rooms := map[string]bool{}
	for _, p := range list(t) {
		parts := strings.Split(p.ImportPath, "/")
		if within(p.ImportPath, "services", "terraform-provider-nstance") && len(parts) > 1 {
			depth := 2
			if parts[1] == "internal" {
				depth = 3
			}
			rooms[strings.Join(parts[:min(depth, len(parts))], "/")] = true
		}
	}
	if len(rooms) < 10 || len(rooms) > 20 {
		t.Errorf("%d rooms, want at most 20: %q", len(rooms), slices.Sorted(maps.Keys(rooms)))
	}
}

// TestRulesDetectViolations checks every rule with a package that violates it.
func TestRulesDetectViolations(t *testing.T) {
	for name, bad := range map[string]pkg{
		"direction": {ImportPath: "services/contract/record",
			Imports: []string{"services/store/clusterstate"}},
		"concrete providers": {ImportPath: "services/internal/server/act/execute",
			Imports: []string{"services/internal/server/infra/tmux"}},
		"plan: ident, config, record and reconnect": {ImportPath: "services/internal/server/plan",
			Imports: []string{"services/store/objstore"}},
		"election: record and the store's tokens": {ImportPath: "services/internal/server/lead/election",
			Imports: []string{"services/internal/server/lead/lease"}},
		"plan and election are pure": {ImportPath: "services/internal/server/lead/election",
			Imports: []string{"log/slog"}},
		"render knows texts, not config": {ImportPath: "services/contract/render",
			Imports: []string{"services/contract/config"}},
		"contract stands alone": {ImportPath: "services/contract/config",
			XTestImports: []string{"services/internal/server/plan"}},
		"store": {ImportPath: "services/store/objstore",
			XTestImports: []string{"services/internal/server/plan"}},
		"tests: contract and api": {ImportPath: "tests/system", Imports: []string{"services/internal/server"}},
		"provider: contract": {ImportPath: "terraform-provider-nstance/internal/resource/shard",
			Imports: []string{"services/internal/server/lead/lease"}},
		"commands hold no test code": {ImportPath: "services/cmd/nstance-server",
			Deps: []string{"services/internal/server/infra/mock"}},
		"the provider holds no test code": {ImportPath: "terraform-provider-nstance",
			Deps: []string{"terraform-provider-nstance/internal/acctest"}},
		"the agent cannot change a cloud": {ImportPath: "services/cmd/nstance-agent",
			Deps: []string{"github.com/aws/aws-sdk-go-v2/service/ec2"}},
		"the Terraform provider cannot change a cloud": {ImportPath: "terraform-provider-nstance",
			Deps: []string{"github.com/aws/aws-sdk-go-v2/service/ec2/types"}},
		"no Kubernetes but in the operator": {ImportPath: "services/cmd/nstance-server",
			Deps: []string{"k8s.io/client-go/rest"}},
	} {
		if len(rules[name](bad)) == 0 {
			t.Errorf("%s: no complaint about %+v", name, bad)
		}
	}
	for name := range rules {
		if complaints := rules[name](pkg{ImportPath: "services/internal/server/shardstate",
			Imports: []string{"time", "services/internal/server/infra"}}); len(complaints) > 0 {
			t.Errorf("%s complains about what is allowed: %v", name, complaints)
		}
	}
	for _, statement := range []string{"go f()", "c <- 1", "select {}", "time.Sleep(1)", "_ = time.Now()",
		"var c chan int"} {
		if got := impurities("x.go", []byte("package p\nfunc _() { "+statement+" }")); len(got) != 1 {
			t.Errorf("%s: complaints %v, want one", statement, got)
		}
	}
	if got := direction(pkg{ImportPath: "services/internal/server/misc"}); len(got) == 0 {
		t.Error("direction: no complaint about a package without a place")
	}
}

// cloudWords returns the words that name a cloud: the names of clouds and of their object stores, and names of their
// services.
func cloudWords() []string {
	words := []string{"amazon", "ec2", "elbv2", "gce", "google", "imds", "libvirt", "parameterstore", "secretsmanager",
		"ssm"}
	for _, block := range all.Blocks() {
		words = append(words, block.Name)
		for _, store := range block.ObjectStores {
			words = append(words, store.Name)
		}
	}
	return words
}

// cloudPlaces returns the folders and files of product code that may name a cloud. A folder ends in a slash.
func cloudPlaces() []string {
	places := []string{
		// These folders and files list the clouds, or the kinds of stores, that programs support.
		"services/contract/cloud/all/", "services/store/keyring/all/", "services/store/objstore/open/",
		"services/store/secretstore/open/", "services/internal/agent/notice/clouds.go",
		"services/cmd/nstance-server/", "services/cmd/nstance-admin/clouds.go", "services/api/tunnel/clouds.go",
		// Kinds of secrets store.
		"services/store/secretstore/aws/", "services/store/secretstore/googlesecretmanager/",
		// Code that the packages of one cloud share.
		"services/store/awscloud/", "services/store/googlecloud/",
		"terraform-provider-nstance/internal/client/machinegroup/all/",
	}
	for _, block := range all.Blocks() {
		places = append(places, "services/contract/cloud/"+block.Name+"/",
			"services/internal/server/infra/"+block.Name+"/",
			"services/store/keyring/"+block.Name+"/", "services/internal/agent/notice/"+block.Name+".go",
			"terraform-provider-nstance/internal/client/machinegroup/"+block.Name+"/")
		for _, store := range block.ObjectStores {
			places = append(places, "services/store/objstore/"+store.Name+"/")
		}
	}
	return places
}

// cloudExceptions are folders and files that name clouds, although cloudPlaces does not return them. The values are the
// reasons.
var cloudExceptions = map[string]string{
	"services/api/nstance/v1/":                               "generated code uses the package google.protobuf",
	"services/dev/":                                          "the development cluster uses tmux and an S3 server",
	"services/internal/dev/":                                 "the development cluster uses tmux and an S3 server",
	"services/cmd/dev-s3/":                                   "an S3 server for development",
	"services/internal/proof/sim/":                           "test code: the simulator replaces the cloud",
	"services/internal/proof/histories/doc.go":               "test code: the store is an S3 server",
	"services/store/objstore/objstoretest/":                  "test code: the conformance suite",
	"terraform-provider-nstance/internal/acctest/":           "test code: a server with a real store and real VMs",
	"services/contract/config/types.go":                      "S3 is also the protocol of other stores",
	"terraform-provider-nstance/internal/provider/schema.go": "S3 is also the protocol of other stores",
}

// TestCloudsInTheirPlaces checks that product code names a cloud only in that cloud's folders and in the lists of
// supported clouds. docs/contributing/adding-a-cloud.md describes these folders and lists.
func TestCloudsInTheirPlaces(t *testing.T) {
	used := map[string]bool{}
	words, places := cloudWords(), cloudPlaces()
	inside := func(path string) func(string) bool {
		return func(place string) bool {
			return path == place || strings.HasSuffix(place, "/") && strings.HasPrefix(path, place)
		}
	}
	files := 0
	for _, root := range []string{"services", "terraform-provider-nstance"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			files++
			path := strings.TrimPrefix(filepath.ToSlash(file), "../")
			if slices.ContainsFunc(places, inside(path)) {
				return nil
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			found := cloudNames(path, text, words)
			for place := range cloudExceptions {
				if inside(path)(place) {
					used[place] = used[place] || len(found) > 0
					return nil
				}
			}
			for _, complaint := range found {
				t.Error(complaint)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 300 {
		t.Errorf("only %d files were checked", files)
	}
	for place := range cloudExceptions {
		if !used[place] {
			t.Errorf("%s names no cloud: delete the exception", place)
		}
	}
}

// cloudNames returns a complaint for each identifier, literal and comment of a file that contains one of the words.
// URLs in comments do not count.
func cloudNames(path string, text []byte, words []string) (complaints []string) {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile(path, -1, len(text)), text, nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return complaints
		case token.COMMENT:
			literal = commentURL.ReplaceAllString(literal, "")
		case token.STRING:
			literal = neutralImport.ReplaceAllString(literal, "")
		}
		for _, word := range wordsOf(literal) {
			if slices.Contains(words, word) {
				complaints = append(complaints, fmt.Sprintf("%s: %s names a cloud: %q",
					files.Position(pos), kind, word))
				break
			}
		}
	}
}

var (
	commentURL = regexp.MustCompile(`https?://\S+`)
	// neutralImport matches imports of modules whose paths contain the name of a cloud, but that do not belong to the
	// cloud.
	neutralImport = regexp.MustCompile(`^"(github\.com/google|google\.golang\.org/(grpc|protobuf|genproto))\b`)
	// capital matches the boundary before a word that starts with a capital letter.
	capital = regexp.MustCompile(`([A-Z0-9])([A-Z][a-z])|([a-z0-9])([A-Z])`)
)

// wordsOf returns the words of a text in lower case. An identifier has several words: newS3Store has new, s3 and store.
func wordsOf(text string) []string {
	text = strings.ToLower(capital.ReplaceAllString(text, "$1$3 $2$4"))
	return strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

// list asks the go command for every package of the module.
func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	decoder := json.NewDecoder(bytes.NewReader(out))
	var packages []pkg
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(fmt.Errorf("go list: %w", err))
		}
		for _, paths := range [][]string{{p.ImportPath}, p.Imports, p.TestImports, p.XTestImports, p.Deps} {
			for i := range paths {
				paths[i] = strings.TrimPrefix(paths[i], module)
			}
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		packages = append(packages, p)
	}
}

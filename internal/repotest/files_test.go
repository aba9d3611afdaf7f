package repotest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/disclosured/disclosured"

// How long a file of ours may be: code is read from top to bottom, tests one by one.
const (
	maxCodeLines = 700
	maxTestLines = 1000
)

// skips are the tests that may skip, by file, and why. A skipped test proves nothing, so the reason must be a thing outside that
// the test's machine can't be made to have.
var skips = map[string]string{}

// pkg is a package of this module, by its path in it. Imports of this module's packages are written without its path too.
type pkg struct {
	path, dir, doc       string
	files                []string
	imports, testImports []string
}

var listPackages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Doc,GoFiles,CgoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the module's packages: %w\n%s", err, stderr.String())
	}
	var all []pkg
	decoder := json.NewDecoder(bytes.NewReader(output))
	for {
		var listed struct {
			ImportPath, Dir, Doc                                  string
			GoFiles, CgoFiles, Imports, TestImports, XTestImports []string
		}
		if err := decoder.Decode(&listed); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the list of packages: %w", err)
		}
		all = append(all, pkg{
			path:        inModule(listed.ImportPath),
			dir:         listed.Dir,
			doc:         listed.Doc,
			files:       append(listed.GoFiles, listed.CgoFiles...),
			imports:     inModuleAll(listed.Imports),
			testImports: inModuleAll(append(listed.TestImports, listed.XTestImports...)),
		})
	}
})

func packages(t *testing.T) []pkg {
	t.Helper()
	all, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

func inModule(path string) string { return strings.TrimPrefix(path, module+"/") }

func inModuleAll(paths []string) []string {
	out := make([]string, len(paths))
	for i, path := range paths {
		out[i] = inModule(path)
	}
	return out
}

// root is the module's directory: tests run in their package's own.
func root() string {
	return filepath.Join("..", "..")
}

// walk calls visit for each file of the repository with the given ending, with its path from the root. What is built, what is
// recorded and what belongs to another module is left out.
func walk(t *testing.T, ending string, visit func(path string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(root(), func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's or another test's temporary file
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root(), path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch {
			case relative == ".":
				return nil
			case slices.Contains([]string{".git", "bin", "testdata", "third_party", "node_modules"}, entry.Name()):
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ending) {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		visit(filepath.ToSlash(relative), content)
		return nil
	})
	if err != nil {
		t.Fatalf("walking the repository: %v", err)
	}
}

var generatedLine = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func generated(content []byte) bool {
	return generatedLine.Match(content)
}

func TestPackagesHaveComments(t *testing.T) {
	for _, p := range packages(t) {
		if p.doc != "" || len(p.files) == 0 {
			continue
		}
		all := true
		for _, file := range p.files {
			content, err := os.ReadFile(filepath.Join(p.dir, file))
			if err != nil {
				t.Fatal(err)
			}
			all = all && generated(content)
		}
		if !all {
			t.Errorf("%s has no package comment", p.path)
		}
	}
}

func TestGoFiles(t *testing.T) {
	unfinished := regexp.MustCompile(`//.*\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	walk(t, ".go", func(path string, content []byte) {
		if generated(content) {
			return
		}
		formatted, err := format.Source(content)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		if !bytes.Equal(formatted, content) {
			t.Errorf("%s is not as gofmt writes it", path)
		}
		limit := maxCodeLines
		if strings.HasSuffix(path, "_test.go") {
			limit = maxTestLines
		}
		if lines := bytes.Count(content, []byte("\n")); lines > limit {
			t.Errorf("%s has %d lines, more than %d", path, lines, limit)
		}
		if found := unfinished.Find(content); found != nil {
			t.Errorf("%s is unfinished: %s", path, found)
		}
	})
}

func TestTestsNeitherSleepNorSkip(t *testing.T) {
	used := map[string]bool{}
	walk(t, "_test.go", func(path string, content []byte) {
		for _, found := range sleepsAndSkips(t, path, content) {
			switch {
			case found.call == "time.Sleep":
				t.Errorf("%s:%d sleeps: wait for the thing itself, or use synctest", path, found.line)
			case skips[path] != "":
				used[path] = true
			default:
				t.Errorf("%s:%d skips (%s) without a reason in the list", path, found.line, found.call)
			}
		}
	})
	for path := range skips {
		if !used[path] {
			t.Errorf("%s is on the list of skips and skips nothing", path)
		}
	}
}

type finding struct {
	call string
	line int
}

// sleepsAndSkips finds calls of time.Sleep outside of synctest's bubbles, where sleeping is instant and exact, and calls that
// skip a test.
func sleepsAndSkips(t *testing.T, path string, content []byte) []finding {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, content, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return nil
	}
	var found []finding
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		receiver, ok := selector.X.(*ast.Ident)
		if !ok {
			return true
		}
		name := receiver.Name + "." + selector.Sel.Name
		switch {
		case receiver.Name == "synctest":
			return false
		case name == "time.Sleep",
			slices.Contains([]string{"t", "b", "f", "tb"}, receiver.Name) && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name):
			found = append(found, finding{name, files.Position(call.Pos()).Line})
		}
		return true
	})
	return found
}

func TestSleepsAndSkipsAreFound(t *testing.T) {
	const source = `package p
func TestA(t *testing.T) {
	time.Sleep(1)
	synctest.Test(t, func(t *testing.T) { time.Sleep(1) })
	if x { t.Skipf("no") }
	r.Skip(3)
}`
	got := fmt.Sprint(sleepsAndSkips(t, "p_test.go", []byte(source)))
	if want := "[{time.Sleep 3} {t.Skipf 5}]"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}

// TestProtoHasItsGo tells only that the files are there; that they are what the proto gives is `make generated`.
func TestProtoHasItsGo(t *testing.T) {
	service := regexp.MustCompile(`(?m)^service `)
	walk(t, ".proto", func(path string, content []byte) {
		wanted := []string{strings.TrimSuffix(path, ".proto") + ".pb.go"}
		if service.Match(content) {
			wanted = append(wanted, strings.TrimSuffix(path, ".proto")+"_grpc.pb.go")
		}
		for _, file := range wanted {
			if _, err := os.Stat(filepath.Join(root(), file)); err != nil {
				t.Errorf("%s: %v: run make generate", path, err)
			}
		}
	})
}

// TestMigrationsAreNumbered: two branches may each add a migration of one number, and a merge shows no conflict.
func TestMigrationsAreNumbered(t *testing.T) {
	name := regexp.MustCompile(`^([0-9]{5})_[a-z0-9_]+\.sql$`)
	last := map[string]int{} // by folder; the walk is in the order of names
	walk(t, ".sql", func(file string, _ []byte) {
		folder := path.Dir(file)
		if path.Base(folder) != "migrations" {
			return
		}
		match := name.FindStringSubmatch(path.Base(file))
		if match == nil {
			t.Errorf("%s: a migration is named like 00001_what_it_does.sql", file)
			return
		}
		last[folder]++
		if number, err := strconv.Atoi(match[1]); err != nil || number != last[folder] {
			t.Errorf("%s: the next number is %05d", file, last[folder])
		}
	})
	if len(last) == 0 {
		t.Error("no migrations found")
	}
}

package daml

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/disclosured/disclosured/internal/damlmodel"
)

// enginesOwn are the rules whose messages are the ledger engine's and stand in no model.
var enginesOwn = []string{"RuleTemplatePrecondition", "RuleArithmetic"}

// TestMessages holds the texts of refusals to each other: each that the Go code predicts is one of the LF text and of the Daml sources,
// and each of these two is one of the other and is predicted.
func TestMessages(t *testing.T) {
	m := allMessages(t)
	if len(m.code) < 25 {
		t.Fatalf("only %d messages found in the code: %v", len(m.code), slices.Sorted(maps.Keys(m.code)))
	}
	for _, d := range m.differences() {
		t.Error(d)
	}
}

// TestAChangedMessageIsSeen changes one text in each of the three places.
func TestAChangedMessageIsSeen(t *testing.T) {
	const text = "VAA already consumed"
	for _, c := range []struct {
		in   func(messages) map[string]bool
		want []string
	}{
		{func(m messages) map[string]bool { return m.code }, []string{
			`"VAA consumed already" of the code is not in the Daml sources`, `"VAA already consumed" of the LF text is not in the code`,
		}},
		{func(m messages) map[string]bool { return m.lf }, []string{
			`"VAA already consumed" of the code is not in the LF text`, `"VAA consumed already" of the LF text is not in the code`,
		}},
		{func(m messages) map[string]bool { return m.daml }, []string{
			`"VAA already consumed" of the code is not in the Daml sources`, `"VAA consumed already" of the Daml sources is not in the LF text`,
		}},
	} {
		m := allMessages(t)
		in := c.in(m)
		delete(in, text)
		in["VAA consumed already"] = true
		got := m.differences()
		for _, want := range c.want {
			if !slices.Contains(got, want) {
				t.Errorf("%q is not among what was found:\n%s", want, strings.Join(got, "\n"))
			}
		}
	}
}

type messages struct{ code, lf, daml map[string]bool }

func allMessages(t *testing.T) messages {
	t.Helper()
	m := messages{code: codeMessages(t, "../internal/wormhole"), lf: lfMessages(t), daml: map[string]bool{}}
	maps.Copy(m.code, codeMessages(t, "../internal/ledgerstream/ledgersim"))
	for path, text := range sources(t) {
		if strings.HasPrefix(path, "wormhole-core-test/") {
			continue
		}
		literals, err := damlmodel.TextLiterals(text)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, l := range literals {
			if strings.Contains(l, " ") {
				m.daml[l] = true
			}
		}
	}
	return m
}

func (m messages) differences() []string {
	var out []string
	for _, c := range []struct {
		from, in    string
		texts, wide map[string]bool
	}{
		{"the code", "the LF text", m.code, m.lf},
		{"the code", "the Daml sources", m.code, m.daml},
		{"the LF text", "the Daml sources", m.lf, m.daml},
		{"the Daml sources", "the LF text", m.daml, m.lf},
		{"the LF text", "the code", m.lf, m.code},
	} {
		for _, text := range slices.Sorted(maps.Keys(c.texts)) {
			if !c.wide[text] {
				out = append(out, strconv.Quote(text)+" of "+c.from+" is not in "+c.in)
			}
		}
	}
	return out
}

// lfMessages are the texts with a space in the LF sources: those are said to people.
func lfMessages(t *testing.T) map[string]bool {
	t.Helper()
	comment, literal := regexp.MustCompile(`(?m)//.*$`), regexp.MustCompile(`"([^"\\]*)"`)
	out := map[string]bool{}
	for _, name := range []string{WormholeCorePackage, ExampleIntegratorPackage} {
		text, err := os.ReadFile(filepath.Join("lf", name+".lf"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range literal.FindAllStringSubmatch(comment.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], " ") {
				out[m[1]] = true
			}
		}
	}
	return out
}

// codeMessages are the texts with which the package's rules fail: the arguments of rule, numbered and failure, and what a Rule's
// Message is set to. A text with numbers in it gives its parts.
func codeMessages(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	out := map[string]bool{}
	take := func(e ast.Expr) {
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) > 0 { // fmt.Sprintf
			e = call.Args[0]
		}
		literal, ok := e.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(text, "%d") {
			if strings.Contains(part, " ") {
				out[part] = true
			}
		}
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				f, ok := n.Fun.(*ast.Ident)
				if !ok {
					return true
				}
				switch {
				case f.Name == "failure" && len(n.Args) == 1:
					take(n.Args[0])
				case (f.Name == "rule" || f.Name == "numbered") && len(n.Args) >= 2:
					if code, ok := n.Args[0].(*ast.Ident); !ok || !slices.Contains(enginesOwn, code.Name) {
						take(n.Args[1])
					}
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Message" {
					take(n.Value)
				}
			}
			return true
		})
	}
	return out
}

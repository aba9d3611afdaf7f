package damlmodel

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	wordToken tokenKind = iota // a name, perhaps with dots, or a number
	textToken                  // a text literal, without its quotes
	markToken                  // one of ( ) [ ] { } , ; or a run of operator characters
)

// token is a token of a source. Comments are none.
type token struct {
	kind tokenKind
	text string
	// line and column count from 1.
	line, column int
}

func (t token) is(text string) bool { return t.kind != textToken && t.text == text }

const operators = "!#$%&*+./<=>?@\\^|-~:"

// lex parts a source into tokens.
func lex(source string) ([]token, error) {
	var out []token
	line, lineStart := 1, 0
	for i := 0; i < len(source); {
		rest := source[i:]
		c, size := utf8.DecodeRuneInString(rest)
		at := token{line: line, column: i - lineStart + 1}
		switch {
		case c == '\n':
			line, lineStart = line+1, i+1
			i++
		case c == '\t':
			return nil, fmt.Errorf("line %d: a tab", line)
		case unicode.IsSpace(c):
			i += size
		case strings.HasPrefix(rest, "{-"):
			end := strings.Index(rest, "-}")
			if end < 0 {
				return nil, fmt.Errorf("line %d: a comment without end", line)
			}
			if n := strings.Count(rest[:end], "\n"); n > 0 {
				line, lineStart = line+n, i+strings.LastIndex(rest[:end], "\n")+1
			}
			i += end + 2
		case strings.HasPrefix(rest, "--") && strings.Trim(rest[:operatorEnd(rest)], "-") == "":
			end := strings.IndexByte(rest, '\n')
			if end < 0 {
				end = len(rest)
			}
			i += end
		case c == '"':
			text, n, err := lexText(rest)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			at.kind, at.text = textToken, text
			out, i = append(out, at), i+n
		case unicode.IsLetter(c) || unicode.IsDigit(c) || c == '_':
			n := strings.IndexFunc(rest, func(r rune) bool {
				return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' && r != '.' && r != '\''
			})
			if n < 0 {
				n = len(rest)
			}
			at.kind, at.text = wordToken, rest[:n]
			out, i = append(out, at), i+n
		case strings.ContainsRune("()[]{},;`", c):
			at.kind, at.text = markToken, rest[:1]
			out, i = append(out, at), i+1
		case strings.ContainsRune(operators, c):
			n := operatorEnd(rest)
			at.kind, at.text = markToken, rest[:n]
			out, i = append(out, at), i+n
		default:
			return nil, fmt.Errorf("line %d: unexpected %q", line, c)
		}
	}
	return out, nil
}

func operatorEnd(s string) int {
	n := strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune(operators, r) })
	if n < 0 {
		return len(s)
	}
	return n
}

// lexText reads a text literal and how many bytes it takes. Of escapes it knows the quote, the backslash and \n.
func lexText(s string) (string, int, error) {
	var out strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return out.String(), i + 1, nil
		case '\n':
			return "", 0, fmt.Errorf("a text without end")
		case '\\':
			if i++; i >= len(s) {
				return "", 0, fmt.Errorf("a text without end")
			}
			switch s[i] {
			case '"', '\\':
				out.WriteByte(s[i])
			case 'n':
				out.WriteByte('\n')
			default:
				return "", 0, fmt.Errorf("the escape \\%c", s[i])
			}
		default:
			out.WriteByte(c)
		}
	}
	return "", 0, fmt.Errorf("a text without end")
}

// parseModule reads a module. Each declaration begins in the first column and ends before the next one.
func parseModule(source string) (*module, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	m := &module{
		synonyms: map[string]typeExpr{}, records: map[string][]fieldDecl{}, named: map[string]bool{}, templates: map[string]templateDecl{},
	}
	for len(tokens) > 0 {
		end := 1
		for end < len(tokens) && tokens[end].column > 1 {
			end++
		}
		p := &parser{tokens: tokens[:end]}
		if err := m.declaration(p); err != nil {
			return nil, err
		}
		tokens = tokens[end:]
	}
	if m.name == "" {
		return nil, fmt.Errorf("no module header")
	}
	return m, nil
}

func (m *module) declaration(p *parser) error {
	first := p.tokens[0]
	switch {
	case first.is("module"):
		p.next()
		if m.name != "" {
			return p.fail(first, "a second module header")
		}
		m.name = p.next().text
		if !p.take("where") || p.more() || m.name == "" {
			return p.fail(first, "a module header that is not `module Name where`")
		}
		return nil
	case first.is("import"):
		return m.importDeclaration(p)
	case first.is("type"):
		p.next()
		name := p.next()
		if !isTypeName(name.text) || !p.take("=") {
			return p.fail(first, "a type synonym that is not `type Name = Type`")
		}
		t, err := p.typeExpr(0)
		if err != nil {
			return err
		}
		if p.more() {
			return p.fail(p.peek(), "more after a type synonym")
		}
		return m.declareType(name, func() { m.synonyms[name.text] = t })
	case first.is("data"):
		return m.dataDeclaration(p)
	case first.is("template"):
		return m.templateDeclaration(p)
	case first.is("newtype"), first.is("class"), first.is("instance"), first.is("interface"), first.is("exception"), first.is("deriving"):
		return p.fail(first, "a declaration of a kind that is not known here: "+first.text)
	default:
		return nil // a function, or its type
	}
}

// declareType takes note of a type, which must be new.
func (m *module) declareType(name token, note func()) error {
	if m.declares(name.text) {
		return fmt.Errorf("line %d: type %s is declared twice", name.line, name.text)
	}
	note()
	return nil
}

// importDeclaration reads `import A.B`, `import A.B (x, Y, Z(..))`, `import A.B qualified as C`.
func (m *module) importDeclaration(p *parser) error {
	first := p.next()
	i := importDecl{module: p.next().text}
	if p.take("qualified") {
		if !p.take("as") {
			return p.fail(first, "an import that is qualified by no name")
		}
		i.qualified = p.next().text
	}
	if p.take("(") {
		i.names = []string{}
		for !p.take(")") {
			name := p.next()
			if name.text == "" {
				return p.fail(first, "an import list without end")
			}
			i.names = append(i.names, name.text)
			if p.take("(") && (!p.take("..") || !p.take(")")) {
				return p.fail(name, "an imported type with some of its constructors")
			}
			if !p.take(",") && !p.peek().is(")") {
				return p.fail(name, "an import list that is not a list of names")
			}
		}
	}
	if p.more() || i.module == "" {
		return p.fail(first, "an import in a form that is not known here")
	}
	m.imports = append(m.imports, i)
	return nil
}

// dataDeclaration reads `data X = X with fields deriving (…)`. Other data types are known by name alone, and so are those with parameters.
func (m *module) dataDeclaration(p *parser) error {
	first := p.next()
	name := p.next()
	if !isTypeName(name.text) {
		return p.fail(first, "a data type without a name")
	}
	if p.take("=") && p.take(name.text) && p.take("with") {
		fields, err := p.fields("deriving")
		if err != nil {
			return err
		}
		return m.declareType(name, func() { m.records[name.text] = fields })
	}
	return m.declareType(name, func() { m.named[name.text] = true })
}

// templateDeclaration reads `template X with fields where clauses`.
func (m *module) templateDeclaration(p *parser) error {
	first := p.next()
	name := p.next()
	if !isTypeName(name.text) || !p.take("with") {
		return p.fail(first, "a template that is not `template Name with`")
	}
	t := templateDecl{choices: map[string]choiceDecl{}}
	var err error
	if t.fields, err = p.fields("where"); err != nil {
		return err
	}
	if !p.take("where") || !p.more() {
		return p.fail(name, "a template without where")
	}
	column := p.peek().column
	for p.more() {
		clause := p.clause(column)
		if err := t.clause(clause); err != nil {
			return err
		}
	}
	return m.declareType(name, func() { m.templates[name.text] = t })
}

func (t templateDecl) clause(p *parser) error {
	first := p.next()
	switch {
	case first.is("signatory"), first.is("observer"), first.is("ensure"):
		return nil
	case first.is("choice"):
		return t.choice(p, true)
	case first.is("nonconsuming") && p.take("choice"):
		return t.choice(p, false)
	default:
		return p.fail(first, "a template's clause that is not known here: "+first.text)
	}
}

// choice reads `Name : Type [with arguments] controller …`. What it does is not looked at.
func (t templateDecl) choice(p *parser, consuming bool) error {
	name := p.next()
	if !isTypeName(name.text) || !p.take(":") {
		return p.fail(name, "a choice that is not `choice Name : Type`")
	}
	c := choiceDecl{consuming: consuming, line: name.line}
	var err error
	if c.result, err = p.typeExpr(0); err != nil {
		return err
	}
	if p.take("with") {
		if c.arguments, err = p.fields("controller"); err != nil {
			return err
		}
	}
	if !p.peek().is("controller") {
		return p.fail(name, "a choice whose controllers do not follow")
	}
	return add(t.choices, "choice", name.text, c)
}

// parser reads the tokens of one declaration. Past the end there are empty tokens.
type parser struct {
	tokens []token
	at     int
}

func (p *parser) more() bool { return p.at < len(p.tokens) }

func (p *parser) peek() token {
	if !p.more() {
		return token{kind: markToken}
	}
	return p.tokens[p.at]
}

func (p *parser) next() token {
	t := p.peek()
	p.at++
	return t
}

func (p *parser) take(text string) bool {
	if p.peek().is(text) && p.more() {
		p.at++
		return true
	}
	return false
}

func (p *parser) fail(at token, what string) error {
	line := at.line
	if line == 0 && len(p.tokens) > 0 {
		line = p.tokens[len(p.tokens)-1].line
	}
	return fmt.Errorf("line %d: %s", line, clip(what))
}

// clause is a parser for the tokens up to the next one in that column or left of it.
func (p *parser) clause(column int) *parser {
	start := p.at
	for p.at++; p.more() && p.peek().column > column; p.at++ {
	}
	return &parser{tokens: p.tokens[start:p.at]}
}

// fields reads `name : Type` lines up to the word that ends them, or to the end. Each begins in the column of the first.
func (p *parser) fields(end string) ([]fieldDecl, error) {
	var out []fieldDecl
	column := p.peek().column
	for p.more() && !p.peek().is(end) {
		if p.peek().column != column {
			return nil, p.fail(p.peek(), "a field that does not begin where the first one does")
		}
		f := p.clauseUntil(column, end)
		name := f.next()
		if name.kind != wordToken || isTypeName(name.text) || strings.Contains(name.text, ".") || !f.take(":") {
			return nil, p.fail(name, "a field that is not `name : Type`")
		}
		t, err := f.typeExpr(0)
		if err != nil {
			return nil, err
		}
		if f.more() {
			return nil, f.fail(f.peek(), "more after a field's type")
		}
		for _, other := range out {
			if other.name == name.text {
				return nil, p.fail(name, "a second field "+name.text)
			}
		}
		out = append(out, fieldDecl{name: name.text, typ: t, line: name.line})
	}
	return out, nil
}

// clauseUntil is clause, and stops before a word as well.
func (p *parser) clauseUntil(column int, end string) *parser {
	start := p.at
	for p.at++; p.more() && p.peek().column > column && !p.peek().is(end); p.at++ {
	}
	return &parser{tokens: p.tokens[start:p.at]}
}

// typeExpr reads a type: a head and what it is applied to.
func (p *parser) typeExpr(depth int) (typeExpr, error) {
	if depth > maxDepth {
		return typeExpr{}, p.fail(p.peek(), "a type that nests too deep")
	}
	t, err := p.atom(depth)
	if err != nil {
		return typeExpr{}, err
	}
	for p.peek().is("(") || p.peek().is("[") || p.peek().kind == wordToken && isTypeName(p.peek().text) {
		argument, err := p.atom(depth)
		if err != nil {
			return typeExpr{}, err
		}
		t.arguments = append(t.arguments, argument)
	}
	return t, nil
}

func (p *parser) atom(depth int) (typeExpr, error) {
	first := p.next()
	switch {
	case first.is("["):
		elem, err := p.typeExpr(depth + 1)
		if err != nil {
			return typeExpr{}, err
		}
		if !p.take("]") {
			return typeExpr{}, p.fail(first, "a list type without end")
		}
		return typeExpr{head: "[]", arguments: []typeExpr{elem}}, nil
	case first.is("("):
		if p.take(")") {
			return typeExpr{head: "()"}, nil
		}
		inner, err := p.typeExpr(depth + 1)
		if err != nil {
			return typeExpr{}, err
		}
		if p.take(",") {
			second, err := p.typeExpr(depth + 1)
			if err != nil {
				return typeExpr{}, err
			}
			inner = typeExpr{head: "(,)", arguments: []typeExpr{inner, second}}
		}
		if !p.take(")") {
			return typeExpr{}, p.fail(first, "a type in parentheses without end, or with more than two parts")
		}
		return inner, nil
	case first.kind == wordToken && isTypeName(first.text):
		return typeExpr{head: first.text}, nil
	default:
		return typeExpr{}, p.fail(first, "what should be a type is "+first.text)
	}
}

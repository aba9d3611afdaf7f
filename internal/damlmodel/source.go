package damlmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FromSources reads the modules of a package from their source texts. The names of the map are what errors call them. others are the modules
// of packages that it depends on, whose types it may name.
//
// What is read: module headers, imports, type synonyms without parameters, data types, templates with their fields, choices with their arguments
// and results. It refuses a declaration in a shape that it doesn't know, a type that is neither Daml's nor declared in an imported module,
// and a template's clause that it doesn't know.
func FromSources(sources map[string]string, others ...map[string]string) (Model, error) {
	modules := map[string]*module{}
	read := func(texts map[string]string, own bool) error {
		for _, file := range slices.Sorted(maps.Keys(texts)) {
			m, err := parseModule(texts[file])
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if _, twice := modules[m.name]; twice {
				return fmt.Errorf("%s: module %s is there twice", file, m.name)
			}
			m.own, m.file = own, file
			modules[m.name] = m
		}
		return nil
	}
	if err := read(sources, true); err != nil {
		return Model{}, err
	}
	for _, texts := range others {
		if err := read(texts, false); err != nil {
			return Model{}, err
		}
	}
	out := newModel()
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if m := modules[name]; m.own {
			if err := m.declare(modules, out); err != nil {
				return Model{}, fmt.Errorf("%s: %w", m.file, err)
			}
		}
	}
	return out, nil
}

// module is a parsed module: its declarations with types as they are written.
type module struct {
	name, file string
	own        bool
	imports    []importDecl
	synonyms   map[string]typeExpr
	records    map[string][]fieldDecl
	// named are the other types, which are known by name alone.
	named     map[string]bool
	templates map[string]templateDecl
}

type importDecl struct {
	module string
	// names are what is imported; nil is all.
	names []string
	// qualified is the name that must stand before what it gives; "" for none.
	qualified string
}

type fieldDecl struct {
	name string
	typ  typeExpr
	line int
}

type templateDecl struct {
	fields  []fieldDecl
	choices map[string]choiceDecl
}

type choiceDecl struct {
	consuming bool
	arguments []fieldDecl
	result    typeExpr
	line      int
}

// typeExpr is a type: head applied to arguments. Lists, tuples and unit have the heads "[]", "(,)" and "()".
type typeExpr struct {
	head      string
	arguments []typeExpr
}

// declare resolves the types of a module's declarations, and adds them to the model.
func (m *module) declare(modules map[string]*module, out Model) error {
	r := resolver{modules: modules, module: m}
	for name, fields := range m.records {
		resolved, err := r.fields(fields)
		if err != nil {
			return err
		}
		out.Records[m.name+":"+name] = resolved
	}
	for name, t := range m.templates {
		payload, err := r.fields(t.fields)
		if err != nil {
			return err
		}
		qualified := m.name + ":" + name
		if err := add(out.Records, "record", qualified, payload); err != nil {
			return err
		}
		choices := map[string]Choice{}
		for choiceName, c := range t.choices {
			arguments, err := r.fields(c.arguments)
			if err != nil {
				return err
			}
			result, err := r.resolve(c.result, 0)
			if err != nil {
				return fmt.Errorf("line %d: the result of %s: %w", c.line, choiceName, err)
			}
			choices[choiceName] = Choice{Consuming: c.consuming, Arguments: arguments, Result: result}
			// A choice's arguments are a record of the choice's name.
			if err := add(out.Records, "record", m.name+":"+choiceName, arguments); err != nil {
				return err
			}
		}
		out.Templates[qualified] = Template{Choices: choices}
	}
	return nil
}

// resolver finds what a module's names stand for.
type resolver struct {
	modules map[string]*module
	module  *module
}

func (r resolver) fields(fields []fieldDecl) ([]Field, error) {
	out := make([]Field, len(fields))
	for i, f := range fields {
		t, err := r.resolve(f.typ, 0)
		if err != nil {
			return nil, fmt.Errorf("line %d: field %s: %w", f.line, f.name, err)
		}
		out[i] = Field{f.name, t}
	}
	return out, nil
}

// preludeTypes are the types that need no import, with how many arguments they take.
var preludeTypes = map[string]int{
	"Int": 0, "Text": 0, "Party": 0, "Bool": 0, "Time": 0, "Date": 0, "Decimal": 0, "()": 0,
	"Optional": 1, "ContractId": 1, "TextMap": 1, "[]": 1, "(,)": 2,
}

// libraryTypes are the types that the standard library gives only where they are imported.
var libraryTypes = map[string]struct {
	module    string
	arguments int
}{
	"Map": {"DA.Map", 2},
	"Set": {"DA.Set", 1},
}

// maxSynonyms bounds how long a chain of synonyms may be: one that leads back to itself has no end.
const maxSynonyms = 20

func (r resolver) resolve(t typeExpr, depth int) (string, error) {
	if depth > maxSynonyms {
		return "", fmt.Errorf("type %s leads to no end", t.head)
	}
	arguments := make([]string, len(t.arguments))
	for i, a := range t.arguments {
		var err error
		if arguments[i], err = r.resolve(a, depth+1); err != nil {
			return "", err
		}
	}
	want := -1
	if n, ok := preludeTypes[t.head]; ok {
		want = n
	} else if l, ok := libraryTypes[t.head]; ok {
		if !r.imports(l.module, t.head) {
			return "", fmt.Errorf("type %s is not imported", t.head)
		}
		want = l.arguments
	}
	if want >= 0 {
		if len(arguments) != want {
			return "", fmt.Errorf("type %s has %d arguments, not %d", t.head, len(arguments), want)
		}
		switch t.head {
		case "[]":
			return "[" + arguments[0] + "]", nil
		case "(,)":
			return "(" + arguments[0] + ", " + arguments[1] + ")", nil
		}
		return apply(t.head, arguments...), nil
	}
	return r.declared(t.head, arguments, depth)
}

// declared is a type that a module of ours declares: the own one or an imported one, and just one of them.
func (r resolver) declared(name string, arguments []string, depth int) (string, error) {
	if len(arguments) > 0 {
		return "", fmt.Errorf("type %s has parameters", name)
	}
	var found []*module
	for _, m := range r.modules {
		if m == r.module || r.imports(m.name, name) {
			if m.declares(name) {
				found = append(found, m)
			}
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("type %s is not known", name)
	case 1:
		if t, ok := found[0].synonyms[name]; ok {
			return resolver{modules: r.modules, module: found[0]}.resolve(t, depth+1)
		}
		return found[0].name + ":" + name, nil
	default:
		return "", fmt.Errorf("type %s is declared in %d modules", name, len(found))
	}
}

func (r resolver) imports(module, name string) bool {
	for _, i := range r.module.imports {
		if i.module == module && i.qualified == "" && (i.names == nil || slices.Contains(i.names, name)) {
			return true
		}
	}
	return false
}

func (m *module) declares(name string) bool {
	_, synonym := m.synonyms[name]
	_, record := m.records[name]
	_, template := m.templates[name]
	return synonym || record || template || m.named[name]
}

// TextLiterals are the text literals of a Daml source, in order.
func TextLiterals(source string) ([]string, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tokens {
		if t.kind == textToken {
			out = append(out, t.text)
		}
	}
	return out, nil
}

// isTypeName tells whether a word can name a type, a constructor or a choice.
func isTypeName(s string) bool {
	return s != "" && s[0] >= 'A' && s[0] <= 'Z' && !strings.Contains(s, ".")
}

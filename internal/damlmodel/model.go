// Package damlmodel reads what a Daml model declares, from wherever it is declared, into one form in which declarations can be compared:
// templates, the fields of records in order with their types, choices with their arguments and results.
//
//   - FromDAR decodes an archive (Daml-LF 2.2 and later, the flat form), by protowire: interned strings, names and types are resolved.
//   - FromSources reads Daml source files: a strict parser for declarations alone. It knows the shapes that declarations have in this
//     repository, and refuses what it does not know rather than pass over it; bodies of functions and choices are skipped.
//   - TypeOf and TypeOfValue give the types of what Go code declares (damlvalue.Type) and of what it builds (damlvalue.Value).
//
// Types are texts in Daml's notation: "Int", "[Text]", "Optional Time", "Map Int Wormhole.Core.GuardianSet:GuardianSet", "(Int, Text)". Names of
// records are qualified by module, and not by package, since every build of a package has another id.
//
// It serves tests and what is made at build time. All the same it takes its input for foreign: whatever the bytes, it answers or gives an
// error, in time that is bounded by their length.
package damlmodel

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Model is what a package declares. Names are "Module:Name".
type Model struct {
	// Records are the record types, template payloads and choice arguments included.
	Records map[string][]Field
	// Templates are the templates. The payload of one is the record of the same name.
	Templates map[string]Template
}

// Field is a field of a record.
type Field struct {
	Name string
	// Type is in Daml's notation.
	Type string
}

// Template is what a template declares beside its payload: its choices by name, but for Archive, which every template has.
type Template struct{ Choices map[string]Choice }

// Choice is what a choice declares.
type Choice struct {
	Consuming bool
	Arguments []Field
	// Result is the type of what it gives. "" says nothing about it, and is equal to any.
	Result string
}

// newModel is a model without declarations.
func newModel() Model {
	return Model{Records: map[string][]Field{}, Templates: map[string]Template{}}
}

// Clone is a copy that shares nothing with m.
func (m Model) Clone() Model {
	out := newModel()
	for name, fields := range m.Records {
		out.Records[name] = slices.Clone(fields)
	}
	for name, t := range m.Templates {
		choices := map[string]Choice{}
		for choice, c := range t.Choices {
			c.Arguments = slices.Clone(c.Arguments)
			choices[choice] = c
		}
		out.Templates[name] = Template{Choices: choices}
	}
	return out
}

// Reachable is the part of m that a ledger shows: its templates, and the records that their payloads, arguments and results are
// made of. Records of other packages are not in m, and stay names.
func (m Model) Reachable() Model {
	out := newModel()
	var visit func(types ...string)
	visitFields := func(fields []Field) {
		for _, f := range fields {
			visit(f.Type)
		}
	}
	visit = func(types ...string) {
		for _, t := range types {
			for _, name := range namesIn(t) {
				fields, known := m.Records[name]
				if _, seen := out.Records[name]; seen || !known {
					continue
				}
				out.Records[name] = slices.Clone(fields)
				visitFields(fields)
			}
		}
	}
	for name, t := range m.Clone().Templates {
		out.Templates[name] = t
		visit(name)
		for _, c := range t.Choices {
			visitFields(c.Arguments)
			visit(c.Result)
		}
	}
	return out
}

// namesIn are the qualified names in a type. What a contract id points to is a contract, not a part of the value.
func namesIn(t string) []string {
	var names []string
	afterContractID := false
	for _, word := range strings.FieldsFunc(t, func(r rune) bool { return strings.ContainsRune(" ()[],", r) }) {
		if strings.Contains(word, ":") && !afterContractID {
			names = append(names, word)
		}
		afterContractID = word == "ContractId"
	}
	return names
}

// WithoutContractTypes is m with "ContractId" for every "ContractId X", as values and their Go types have it.
func (m Model) WithoutContractTypes() Model {
	out := m.Clone()
	for _, fields := range out.Records {
		eraseContractTypes(fields)
	}
	for _, t := range out.Templates {
		for name, c := range t.Choices {
			eraseContractTypes(c.Arguments)
			c.Result = eraseContractType(c.Result)
			t.Choices[name] = c
		}
	}
	return out
}

func eraseContractTypes(fields []Field) {
	for i := range fields {
		fields[i].Type = eraseContractType(fields[i].Type)
	}
}

func eraseContractType(t string) string {
	const word = "ContractId "
	var out strings.Builder
	for {
		at := strings.Index(t, word)
		if at < 0 {
			out.WriteString(t)
			return strings.ReplaceAll(out.String(), "(ContractId)", "ContractId")
		}
		out.WriteString(t[:at+len(word)-1])
		t = t[at+len(word):]
		t = t[strings.IndexFunc(t+" ", func(r rune) bool { return strings.ContainsRune(" ()[],", r) }):]
	}
}

// Compare says in sentences how two models differ, sorted; none if they do not. a and b are what the two are called in them.
func Compare(a string, left Model, b string, right Model) []string {
	c := comparison{a: a, b: b}
	for name, leftFields := range c.both(left.Records, right.Records) {
		c.fields("record "+name, leftFields.left, leftFields.right)
	}
	names := slices.Sorted(maps.Keys(left.Templates))
	for name := range right.Templates {
		if _, ok := left.Templates[name]; !ok {
			c.only("template "+name, b)
		}
	}
	for _, name := range names {
		rightTemplate, ok := right.Templates[name]
		if !ok {
			c.only("template "+name, a)
			continue
		}
		c.template(name, left.Templates[name], rightTemplate)
	}
	slices.Sort(c.found)
	return c.found
}

type comparison struct {
	a, b  string
	found []string
}

type pair struct{ left, right []Field }

// both are the records that both have; of those that one has it takes note.
func (c *comparison) both(left, right map[string][]Field) map[string]pair {
	out := map[string]pair{}
	for name := range right {
		if _, ok := left[name]; !ok {
			c.only("record "+name, c.b)
		}
	}
	for name, fields := range left {
		if rightFields, ok := right[name]; ok {
			out[name] = pair{fields, rightFields}
		} else {
			c.only("record "+name, c.a)
		}
	}
	return out
}

func (c *comparison) only(what, where string) {
	c.found = append(c.found, fmt.Sprintf("%s: only in %s", what, where))
}

func (c *comparison) template(name string, left, right Template) {
	for choice := range right.Choices {
		if _, ok := left.Choices[choice]; !ok {
			c.only("choice "+name+"."+choice, c.b)
		}
	}
	for choice, l := range left.Choices {
		what := "choice " + name + "." + choice
		r, ok := right.Choices[choice]
		if !ok {
			c.only(what, c.a)
			continue
		}
		if l.Consuming != r.Consuming {
			c.found = append(c.found, fmt.Sprintf("%s: consuming is %v in %s, %v in %s", what, l.Consuming, c.a, r.Consuming, c.b))
		}
		if l.Result != r.Result && l.Result != "" && r.Result != "" {
			c.found = append(c.found, fmt.Sprintf("%s: the result is %s in %s, %s in %s", what, l.Result, c.a, r.Result, c.b))
		}
		c.fields(what+": argument", l.Arguments, r.Arguments)
	}
}

func (c *comparison) fields(what string, left, right []Field) {
	for i := range max(len(left), len(right)) {
		if l, r := fieldAt(left, i), fieldAt(right, i); l != r {
			c.found = append(c.found, fmt.Sprintf("%s: field %d is %s in %s, %s in %s", what, i+1, l, c.a, r, c.b))
		}
	}
}

func fieldAt(fields []Field, i int) string {
	if i >= len(fields) {
		return "missing"
	}
	return fields[i].Name + " : " + fields[i].Type
}

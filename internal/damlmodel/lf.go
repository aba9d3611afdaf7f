package damlmodel

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers below are those of Daml-LF's daml_lf2.proto. Names, dotted names and types are interned: a number stands for the
// entry in the package's table.

// maxDepth bounds how deep a type nests, through the table of types too. Upstream's own reader stops at 1000.
const maxDepth = 100

// maxTypes bounds how many parts of types are visited in one package, and maxText how long the text of one is: tables that refer
// to each other many times over would multiply otherwise.
const (
	maxTypes = 1 << 15
	maxText  = 1 << 10
)

type lfPackage struct {
	strings []string
	names   []string
	types   []message
	visited int
}

// decodePackage decodes a Package: modules = 1, strings = 2, dotted names = 3, metadata = 4, types = 5.
func decodePackage(b []byte) (Package, error) {
	m, err := parse(b)
	if err != nil {
		return Package{}, err
	}
	p := &lfPackage{}
	for _, f := range m {
		if f.number == 2 {
			p.strings = append(p.strings, string(f.bytes))
		}
	}
	dotted, err := m.all(3)
	if err != nil {
		return Package{}, err
	}
	for _, d := range dotted {
		name, err := p.dottedName(d)
		if err != nil {
			return Package{}, err
		}
		p.names = append(p.names, name)
	}
	if p.types, err = m.all(5); err != nil {
		return Package{}, err
	}
	metadata, err := parse(m.bytes(4))
	if err != nil {
		return Package{}, err
	}
	out := Package{Model: newModel()}
	if out.Name, err = p.string(metadata.int(1)); err != nil {
		return Package{}, fmt.Errorf("the package's name: %w", err)
	}
	if out.Version, err = p.string(metadata.int(2)); err != nil {
		return Package{}, fmt.Errorf("the package's version: %w", err)
	}
	modules, err := m.all(1)
	if err != nil {
		return Package{}, err
	}
	// All records first: a choice's arguments are a record that may stand in any module.
	for _, read := range []func(string, message, Model) error{p.records, p.templates} {
		for _, module := range modules {
			name, err := p.name(module.int(1))
			if err != nil {
				return Package{}, fmt.Errorf("a module's name: %w", err)
			}
			if err := read(name, module, out.Model); err != nil {
				return Package{}, fmt.Errorf("module %s: %w", clip(name), err)
			}
		}
	}
	return out, nil
}

func (p *lfPackage) string(i uint64) (string, error) {
	if i >= uint64(len(p.strings)) {
		return "", fmt.Errorf("there is no string %d", i)
	}
	return p.strings[i], nil
}

func (p *lfPackage) name(i uint64) (string, error) {
	if i >= uint64(len(p.names)) {
		return "", fmt.Errorf("there is no name %d", i)
	}
	return p.names[i], nil
}

// dottedName decodes an InternedDottedName: segments = 1, packed or not.
func (p *lfPackage) dottedName(m message) (string, error) {
	var segments []string
	add := func(i uint64) error {
		s, err := p.string(i)
		segments = append(segments, s)
		return err
	}
	for _, f := range m {
		if f.number != 1 {
			continue
		}
		if f.bytes == nil {
			if err := add(f.value); err != nil {
				return "", err
			}
		}
		for b := f.bytes; len(b) > 0; {
			i, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return "", fmt.Errorf("a dotted name: %w", protowire.ParseError(n))
			}
			if err := add(i); err != nil {
				return "", err
			}
			b = b[n:]
		}
	}
	if len(segments) > maxDepth {
		return "", fmt.Errorf("a dotted name of %d segments", len(segments))
	}
	return strings.Join(segments, "."), nil
}

// records reads a Module's data types = 4. A DefDataType has name = 2, serializable = 4, record = 5; what is not serializable never stands
// on a ledger.
func (p *lfPackage) records(module string, m message, into Model) error {
	definitions, err := m.all(4)
	if err != nil {
		return err
	}
	for _, d := range definitions {
		name, err := p.name(d.int(2))
		if err != nil {
			return fmt.Errorf("a type's name: %w", err)
		}
		record, isRecord := d.last(5)
		if !isRecord || d.int(4) == 0 {
			continue
		}
		fields, err := p.fields(record.bytes)
		if err != nil {
			return fmt.Errorf("record %s: %w", clip(name), err)
		}
		if err := add(into.Records, "record", module+":"+name, fields); err != nil {
			return err
		}
	}
	return nil
}

// fields decodes DefDataType.Fields: fields = 1, each a FieldWithType of type = 2 and name = 3.
func (p *lfPackage) fields(b []byte) ([]Field, error) {
	m, err := parse(b)
	if err != nil {
		return nil, err
	}
	list, err := m.all(1)
	if err != nil {
		return nil, err
	}
	fields := make([]Field, len(list))
	for i, f := range list {
		if fields[i].Name, err = p.string(f.int(3)); err != nil {
			return nil, fmt.Errorf("field %d: %w", i+1, err)
		}
		if fields[i].Type, err = p.typeIn(f.bytes(2)); err != nil {
			return nil, fmt.Errorf("field %s: %w", clip(fields[i].Name), err)
		}
	}
	return fields, nil
}

// templates reads a Module's templates = 6: a DefTemplate has its type's name = 1 and choices = 6.
func (p *lfPackage) templates(module string, m message, into Model) error {
	definitions, err := m.all(6)
	if err != nil {
		return err
	}
	for _, d := range definitions {
		name, err := p.name(d.int(1))
		if err != nil {
			return fmt.Errorf("a template's name: %w", err)
		}
		choices, err := d.all(6)
		if err != nil {
			return err
		}
		t := Template{Choices: map[string]Choice{}}
		for _, c := range choices {
			if err := p.choice(c, t, into); err != nil {
				return fmt.Errorf("template %s: %w", clip(name), err)
			}
		}
		if err := add(into.Templates, "template", module+":"+name, t); err != nil {
			return err
		}
	}
	return nil
}

// choice decodes a TemplateChoice: name = 2, consuming = 3, the argument's binder = 6 (a VarWithType, type = 2), result = 8.
func (p *lfPackage) choice(c message, t Template, m Model) error {
	name, err := p.string(c.int(2))
	if err != nil {
		return fmt.Errorf("a choice's name: %w", err)
	}
	if name == "Archive" {
		return nil
	}
	binder, err := parse(c.bytes(6))
	if err != nil {
		return err
	}
	argument, err := p.typeIn(binder.bytes(2))
	if err != nil {
		return fmt.Errorf("choice %s: the argument: %w", clip(name), err)
	}
	fields, ok := m.Records[argument]
	if !ok {
		return fmt.Errorf("choice %s: the argument %s is no record of the package", clip(name), clip(argument))
	}
	result, err := p.typeIn(c.bytes(8))
	if err != nil {
		return fmt.Errorf("choice %s: the result: %w", clip(name), err)
	}
	return add(t.Choices, "choice", name, Choice{Consuming: c.int(3) != 0, Arguments: fields, Result: result})
}

// builtins are the built-in types by their number, with how many arguments they take.
var builtins = map[uint64]struct {
	name      string
	arguments int
}{
	0: {"()", 0}, 1: {"Bool", 0}, 2: {"Int", 0}, 3: {"Date", 0}, 4: {"Time", 0}, 5: {"Numeric", 1}, 6: {"Party", 0}, 7: {"Text", 0},
	8: {"ContractId", 1}, 9: {"Optional", 1}, 10: {"List", 1}, 11: {"Map", 2}, 19: {"TextMap", 1},
}

func (p *lfPackage) typeIn(b []byte) (string, error) {
	m, err := parse(b)
	if err != nil {
		return "", err
	}
	return p.typeText(m, nil, 0)
}

// typeText decodes a Type, within bounds, applied to arguments: con = 2, builtin = 3, nat = 6, interned = 8, application = 9 (left = 1, right = 2). Type
// variables, functions and the like have no place in what a ledger shows.
func (p *lfPackage) typeText(m message, arguments []string, depth int) (string, error) {
	if p.visited++; p.visited > maxTypes || depth > maxDepth {
		return "", errors.New("types nest too deep")
	}
	t, err := p.typeOf(m, arguments, depth)
	if err == nil && len(t) > maxText {
		return "", fmt.Errorf("a type of %d characters", len(t))
	}
	return t, err
}

func (p *lfPackage) typeOf(m message, arguments []string, depth int) (string, error) {
	for _, f := range m {
		switch f.number {
		case 6:
			return fmt.Sprint(protowire.DecodeZigZag(f.value)), nil
		case 8:
			if f.value >= uint64(len(p.types)) {
				return "", fmt.Errorf("there is no type %d", f.value)
			}
			return p.typeText(p.types[f.value], arguments, depth+1)
		case 2, 3, 9:
		default:
			return "", errors.New("a type that no ledger shows")
		}
		inner, err := parse(f.bytes)
		if err != nil {
			return "", err
		}
		switch f.number {
		case 2:
			name, err := p.typeName(inner.bytes(1))
			if err != nil {
				return "", err
			}
			own, err := p.argumentsOf(inner, depth)
			if err != nil {
				return "", err
			}
			return constructed(name, append(own, arguments...)), nil
		case 3:
			b, ok := builtins[inner.int(1)]
			if !ok {
				return "", fmt.Errorf("a type with the built-in %d", inner.int(1))
			}
			own, err := p.argumentsOf(inner, depth)
			if err != nil {
				return "", err
			}
			own = append(own, arguments...)
			if len(own) != b.arguments {
				return "", fmt.Errorf("%s with %d arguments", b.name, len(own))
			}
			if b.name == "List" {
				return "[" + own[0] + "]", nil
			}
			return apply(b.name, own...), nil
		case 9:
			left, err := parse(inner.bytes(1))
			if err != nil {
				return "", err
			}
			right, err := parse(inner.bytes(2))
			if err != nil {
				return "", err
			}
			argument, err := p.typeText(right, nil, depth+1)
			if err != nil {
				return "", err
			}
			return p.typeText(left, append([]string{argument}, arguments...), depth+1)
		}
	}
	return "", errors.New("a type that no ledger shows")
}

// argumentsOf are the arguments = 2 of a constructor or a built-in.
func (p *lfPackage) argumentsOf(m message, depth int) ([]string, error) {
	list, err := m.all(2)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, a := range list {
		if out[i], err = p.typeText(a, nil, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// typeName decodes a TypeConId: module = 1 (a ModuleId, name = 2), name = 2.
func (p *lfPackage) typeName(b []byte) (string, error) {
	m, err := parse(b)
	if err != nil {
		return "", err
	}
	module, err := parse(m.bytes(1))
	if err != nil {
		return "", err
	}
	moduleName, err := p.name(module.int(2))
	if err != nil {
		return "", fmt.Errorf("a type's module: %w", err)
	}
	name, err := p.name(m.int(2))
	if err != nil {
		return "", fmt.Errorf("a type's name: %w", err)
	}
	return moduleName + ":" + name, nil
}

func constructed(name string, arguments []string) string {
	switch {
	case name == setName && len(arguments) == 1:
		return apply("Set", arguments...)
	case name == tupleName && len(arguments) == 2:
		return "(" + arguments[0] + ", " + arguments[1] + ")"
	default:
		return apply(name, arguments...)
	}
}

// add adds to a map what must not be there yet.
func add[V any](to map[string]V, what, name string, v V) error {
	if _, twice := to[name]; twice {
		return fmt.Errorf("%s %s is defined twice", what, clip(name))
	}
	to[name] = v
	return nil
}

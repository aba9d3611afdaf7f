package ledgersim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"

	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
)

// eventFormat is a request's EventFormat after validation: who asks for which templates and in what form.
type eventFormat struct {
	verbose bool
	byParty map[string]*filters
	// any are the filters for any party, nil if there are none.
	any *filters
}

// filters are the cumulative filters of one party.
type filters struct {
	// all: a wildcard is among them; allBlobs: one that asks for blobs.
	all, allBlobs bool
	// templates by package name and qualified name, with whether blobs are asked for.
	templates map[templateRef]bool
	// interfaces match nothing here: the model has none. Naming an unknown one is an error.
	interfaces []templateRef
}

type templateRef struct{ pkgName, qualified string }

func (r templateRef) String() string { return "#" + r.pkgName + ":" + r.qualified }

// parseEventFormat validates what can be judged without the ledger; check does the rest. The two are apart because the
// participant looks at offsets in between.
func parseEventFormat(f *v2.EventFormat) (*eventFormat, *rejection) {
	if f == nil {
		return nil, missingField("event_format")
	}
	if len(f.GetFiltersByParty()) == 0 && f.GetFiltersForAnyParty() == nil {
		return nil, invalidArguments("filtersByParty and filtersForAnyParty cannot be empty simultaneously")
	}
	out := &eventFormat{verbose: f.GetVerbose(), byParty: map[string]*filters{}}
	for _, p := range slices.Sorted(maps.Keys(f.GetFiltersByParty())) {
		if err := checkParty(p); err != nil {
			return nil, invalidArguments("%s", err)
		}
		parsed, r := parseFilters(f.GetFiltersByParty()[p])
		if r != nil {
			return nil, r
		}
		out.byParty[p] = parsed
	}
	if f.GetFiltersForAnyParty() != nil {
		parsed, r := parseFilters(f.GetFiltersForAnyParty())
		if r != nil {
			return nil, r
		}
		out.any = parsed
	}
	return out, nil
}

func parseFilters(f *v2.Filters) (*filters, *rejection) {
	out := &filters{templates: map[templateRef]bool{}, all: len(f.GetCumulative()) == 0}
	for _, c := range f.GetCumulative() {
		switch kind := c.GetIdentifierFilter().(type) {
		case *v2.CumulativeFilter_WildcardFilter:
			out.all = true
			out.allBlobs = out.allBlobs || kind.WildcardFilter.GetIncludeCreatedEventBlob()
		case *v2.CumulativeFilter_TemplateFilter:
			ref, r := parseRef(kind.TemplateFilter.GetTemplateId(), "templateId")
			if r != nil {
				return nil, r
			}
			out.templates[ref] = out.templates[ref] || kind.TemplateFilter.GetIncludeCreatedEventBlob()
		case *v2.CumulativeFilter_InterfaceFilter:
			ref, r := parseRef(kind.InterfaceFilter.GetInterfaceId(), "interfaceId")
			if r != nil {
				return nil, r
			}
			out.interfaces = append(out.interfaces, ref)
		default:
			// A filter without a kind is a wildcard: seen on a participant.
			out.all = true
		}
	}
	return out, nil
}

func parseRef(id *v2.Identifier, what string) (templateRef, *rejection) {
	if id == nil {
		return templateRef{}, missingField(what)
	}
	name, ok := strings.CutPrefix(id.GetPackageId(), "#")
	switch {
	case id.GetPackageId() == "":
		return templateRef{}, invalidField("package reference", errors.New("Daml-LF Package ID is empty"))
	case !ok:
		return templateRef{}, invalidField("packageId", fmt.Errorf("Received an identifier with package ID %s, but expected a package name.", id.GetPackageId()))
	}
	return templateRef{name, apivalue.TypeName(id).QualifiedName()}, nil
}

// check refuses names that the participant does not know: packages first, then templates, then interfaces.
func (f *eventFormat) check(packages *packageStore) *rejection {
	var unknown []string
	var templates, interfaces []string
	for _, list := range f.lists() {
		for ref := range list.templates {
			switch {
			case len(packages.named(ref.pkgName)) == 0:
				unknown = append(unknown, ref.pkgName)
			case !packages.hasTemplate(ref.pkgName, ref.qualified) && packages.runs(ref.pkgName):
				templates = append(templates, "("+ref.pkgName+","+ref.qualified+")")
			}
		}
		for _, ref := range list.interfaces {
			if len(packages.named(ref.pkgName)) == 0 {
				unknown = append(unknown, ref.pkgName)
				continue
			}
			interfaces = append(interfaces, "("+ref.pkgName+","+ref.qualified+")")
		}
	}
	once := func(list []string) string { slices.Sort(list); return strings.Join(slices.Compact(list), ", ") }
	switch {
	case len(unknown) > 0:
		return reject(notFound, "PACKAGE_NAMES_NOT_FOUND", "The following package names do not match upgradable packages uploaded on this participant: [%s].", once(unknown))
	case len(templates) > 0:
		return reject(notFound, "NO_TEMPLATES_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME",
			"The following package-name/template qualified-name pairs do not reference any template-id uploaded on this participant: [%s].", once(templates))
	case len(interfaces) > 0:
		return reject(notFound, "NO_INTERFACE_FOR_PACKAGE_NAME_AND_QUALIFIED_NAME",
			"The following package-name/interface qualified-name pairs do not reference any interface-id uploaded on this participant: [%s].", once(interfaces))
	default:
		return nil
	}
}

func (f *eventFormat) lists() []*filters {
	lists := slices.Collect(maps.Values(f.byParty))
	if f.any != nil {
		lists = append(lists, f.any)
	}
	return lists
}

// describe is the filter as the participant's errors describe it.
func (f *eventFormat) describe() string {
	one := func(list *filters) string {
		var templates []string
		for ref := range list.templates {
			templates = append(templates, "'"+ref.String()+"'")
		}
		slices.Sort(templates)
		return "{templates: [" + strings.Join(templates, ", ") + "], interfaces: []}"
	}
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(f.byParty)) {
		parts = append(parts, p+": "+one(f.byParty[p]))
	}
	if f.any != nil {
		parts = append(parts, "anyParty: "+one(f.any))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// match decides about an event of a template: the witnesses to name, none if the event is not asked for, and whether its blob
// is. candidates are those who may see it: stakeholders or witnesses, as the shape asks.
func (f *eventFormat) match(pkgName, qualified string, candidates []string) (witnesses []string, blob bool) {
	ref := templateRef{pkgName, qualified}
	if f.any != nil {
		if ok, withBlob := f.any.match(ref); ok {
			witnesses, blob = slices.Clone(candidates), withBlob
		}
	}
	for _, p := range candidates {
		list := f.byParty[p]
		if list == nil {
			continue
		}
		if ok, withBlob := list.match(ref); ok {
			if !slices.Contains(witnesses, p) {
				witnesses = append(witnesses, p)
			}
			blob = blob || withBlob
		}
	}
	return witnesses, blob
}

func (f *filters) match(ref templateRef) (ok, blob bool) {
	templateBlob, named := f.templates[ref]
	return f.all || named, f.all && f.allBlobs || templateBlob
}

// sees reports whether one of the parties is among those that ask.
func (f *eventFormat) sees(parties []string) bool {
	return f.any != nil || slices.ContainsFunc(parties, func(p string) bool { return f.byParty[p] != nil })
}

// parties are those that ask by name.
func (f *eventFormat) parties() []string { return slices.Sorted(maps.Keys(f.byParty)) }

// updateFormat is a request's UpdateFormat after validation; what is nil or false is not asked for.
type updateFormat struct {
	transactions  *eventFormat
	effects       bool
	reassignments *eventFormat
	topology      bool
	// topologyParties restricts topology events; empty is all parties.
	topologyParties []string
}

func parseUpdateFormat(f *v2.UpdateFormat) (*updateFormat, *rejection) {
	if f == nil {
		return nil, missingField("update_format")
	}
	out := &updateFormat{}
	if t := f.GetIncludeTransactions(); t != nil {
		parsed, effects, r := parseTransactionFormat(t)
		if r != nil {
			return nil, r
		}
		out.transactions, out.effects = parsed, effects
	}
	if e := f.GetIncludeReassignments(); e != nil {
		parsed, r := parseEventFormat(e)
		if r != nil {
			return nil, r
		}
		out.reassignments = parsed
	}
	if t := f.GetIncludeTopologyEvents(); t != nil && t.GetIncludeParticipantAuthorizationEvents() != nil {
		out.topology = true
		out.topologyParties = t.GetIncludeParticipantAuthorizationEvents().GetParties()
		for _, p := range out.topologyParties {
			if err := checkParty(p); err != nil {
				return nil, invalidField("parties", err)
			}
		}
	}
	return out, nil
}

func parseTransactionFormat(t *v2.TransactionFormat) (f *eventFormat, effects bool, r *rejection) {
	if t.GetEventFormat() == nil {
		return nil, false, missingField("event_format")
	}
	switch t.GetTransactionShape() {
	case v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA:
	case v2.TransactionShape_TRANSACTION_SHAPE_LEDGER_EFFECTS:
		effects = true
	default:
		return nil, false, missingField("transaction_shape")
	}
	f, r = parseEventFormat(t.GetEventFormat())
	return f, effects, r
}

func (f *updateFormat) check(packages *packageStore) *rejection {
	for _, e := range []*eventFormat{f.transactions, f.reassignments} {
		if e == nil {
			continue
		}
		if r := e.check(packages); r != nil {
			return r
		}
	}
	return nil
}

// asksForContracts reports whether anything but topology is asked for: without it a request is not checked against pruning.
func (f *updateFormat) asksForContracts() bool {
	return f.transactions != nil || f.reassignments != nil
}

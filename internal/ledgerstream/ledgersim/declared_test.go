package ledgersim

import (
	"strings"
	"testing"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/damlmodel"
	"github.com/disclosured/disclosured/internal/damlvalue"
)

// TestPackagesAreWhatTheDARsDeclare holds the packages that this simulator defines to the DARs that they stand for: ids, names and versions;
// templates, the fields of payloads in order with their types, choices, their arguments, and whether they consume.
func TestPackagesAreWhatTheDARsDeclare(t *testing.T) {
	for lf, packages := range map[string][]Package{
		daml.LF23: {WormholeCore010, Integrator010},
		daml.LF22: {wormholeCoreLF22, integratorLF22},
	} {
		for _, p := range packages {
			d, err := daml.Find(p.Name, lf)
			if err != nil {
				t.Fatal(err)
			}
			if p.ID != d.PackageID || p.Version != d.Version {
				t.Errorf("%s for LF %s: %s %s, want %s %s", p.Name, lf, p.Version, p.ID, d.Version, d.PackageID)
			}
			declared, err := damlmodel.FromDAR(d.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			want := declared.Model.Reachable().WithoutContractTypes()
			got := damlmodel.Model{Records: map[string][]damlmodel.Field{}, Templates: map[string]damlmodel.Template{}}
			for name, template := range definePackage(p, true).templates {
				recordsIn(template.typ, p.ID, got.Records)
				choices := map[string]damlmodel.Choice{}
				for choice, c := range template.choices {
					if choice == "Archive" {
						continue
					}
					choices[choice] = damlmodel.Choice{Consuming: !c.nonConsuming, Arguments: damlmodel.FieldsOf(c.arg)}
				}
				got.Templates[name] = damlmodel.Template{Choices: choices}
			}
			if p.Name == daml.WormholeCorePackage {
				recordsIn(recordInPackage(vaaType, p.ID), p.ID, got.Records)
			}
			if found := damlmodel.Compare("the DAR", want, "the simulator", got); len(found) > 0 {
				t.Errorf("%s for LF %s:\n%s", p.Name, lf, strings.Join(found, "\n"))
			}
		}
	}
}

// recordsIn collects the package's records in a type.
func recordsIn(t damlvalue.Type, packageID string, into map[string][]damlmodel.Field) {
	switch t := t.(type) {
	case damlvalue.OptionalType:
		recordsIn(t.Elem, packageID, into)
	case damlvalue.ListType:
		recordsIn(t.Elem, packageID, into)
	case damlvalue.GenMapType:
		recordsIn(t.Value, packageID, into)
	case damlvalue.RecordType:
		if t.Name.PackageID == packageID {
			into[t.Name.QualifiedName()] = damlmodel.FieldsOf(t)
		}
		for _, f := range t.Fields {
			recordsIn(f.Type, packageID, into)
		}
	}
}

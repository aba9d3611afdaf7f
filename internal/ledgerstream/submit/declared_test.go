package submit

import (
	"strings"
	"testing"

	"github.com/disclosured/disclosured/daml"
	"github.com/disclosured/disclosured/internal/damlmodel"
	"github.com/disclosured/disclosured/internal/ledgerstream/apivalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// TestCommandsAreWhatTheDARsDeclare holds the commands that this package builds to what the packages declare: templates, choices, and the
// arguments' fields in order with their types.
func TestCommandsAreWhatTheDARsDeclare(t *testing.T) {
	keys := []wormhole.PubKey{{Index: 0, Key: "04"}}
	got := damlmodel.Model{Records: map[string][]damlmodel.Field{}, Templates: map[string]damlmodel.Template{}}
	for _, command := range []Command{
		CreateIntegrator(Integrator{Manager: "m", Operator: "o", Users: []string{"u"}, PeerChain: 2, PeerAddress: "00"}),
		Redeem(Redemption{Integrator: "00", CoreState: "01", ReplayNode: "02", Redeemer: "r", EncodedVAA: "01", PubKeys: keys}),
		ConsumeDigest("00", "01"),
		VerifyAndConsume("00", "c", "01", "01", keys),
		SubmitGovernance("00", "01", keys),
		RequestRoot(wormhole.ReplayRootRequest{Consumer: "c", Operator: "o", SplitThreshold: 1}),
		ApproveRoot("00", "01"),
		RegisterEmitter("00", "o"),
		PublishMessage("00", 1, "00", 1),
	} {
		if c := command.message.GetCreate(); c != nil {
			record, err := apivalue.RecordFromProto(c.GetCreateArguments())
			if err != nil {
				t.Fatal(err)
			}
			got.Records[c.GetTemplateId().GetModuleName()+":"+c.GetTemplateId().GetEntityName()] = damlmodel.FieldsOfValue(record)
			continue
		}
		c := command.message.GetExercise()
		record, err := apivalue.RecordFromProto(c.GetChoiceArgument().GetRecord())
		if err != nil {
			t.Fatal(err)
		}
		got.Records[c.GetTemplateId().GetModuleName()+":"+c.GetChoice()] = damlmodel.FieldsOfValue(record)
		name := c.GetTemplateId().GetModuleName() + ":" + c.GetTemplateId().GetEntityName()
		if _, ok := got.Templates[name]; !ok {
			got.Templates[name] = damlmodel.Template{Choices: map[string]damlmodel.Choice{}}
		}
		got.Templates[name].Choices[c.GetChoice()] = damlmodel.Choice{Arguments: damlmodel.FieldsOfValue(record)}
	}
	for _, lf := range []string{daml.LF23, daml.LF22} {
		want := damlmodel.Model{Records: map[string][]damlmodel.Field{}, Templates: map[string]damlmodel.Template{}}
		for _, name := range []string{daml.WormholeCorePackage, daml.ExampleIntegratorPackage} {
			declared := declaredBy(t, name, lf)
			// What no command is built for is left out, and whether a choice consumes is not in a command.
			for record, fields := range declared.Records {
				if _, ok := got.Records[record]; ok {
					want.Records[record] = fields
				}
			}
			for template := range declared.Templates {
				ours, ok := got.Templates[template]
				if !ok {
					continue
				}
				want.Templates[template] = damlmodel.Template{Choices: map[string]damlmodel.Choice{}}
				for choice := range ours.Choices {
					if c, ok := declared.Templates[template].Choices[choice]; ok {
						want.Templates[template].Choices[choice] = damlmodel.Choice{Arguments: c.Arguments}
					}
				}
			}
		}
		if found := damlmodel.Compare("the DARs", want, "the commands", got); len(found) > 0 {
			t.Errorf("LF %s:\n%s", lf, strings.Join(found, "\n"))
		}
	}
}

// declaredBy is what a DAR declares, without what contract ids point to: a command does not say.
func declaredBy(t *testing.T, name, lf string) damlmodel.Model {
	t.Helper()
	d, err := daml.Find(name, lf)
	if err != nil {
		t.Fatal(err)
	}
	p, err := damlmodel.FromDAR(d.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return p.Model.WithoutContractTypes()
}

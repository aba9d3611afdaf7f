package ledgersim

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// contract is one contract. It never changes; where and when it is active is the business of its activations.
type contract struct {
	id       string
	template damlvalue.TypeName
	pkgName  string
	// signatories and observers are sorted; an observer is no signatory.
	signatories, observers []string
	createdAt              time.Time
	// payload is the decoded argument of the templates that package wormhole decodes, nil for others.
	payload wormhole.Payload

	// arg and blob are the argument with all names and the created event blob. They are absent from generated contracts, of
	// which there are so many that holding both would take gigabytes: these make them anew from payload, salt and typ.
	arg  damlvalue.Record
	blob []byte
	salt [32]byte
	typ  *damlvalue.RecordType
}

func (c *contract) stakeholder(party string) bool {
	return slices.Contains(c.signatories, party) || slices.Contains(c.observers, party)
}

func (c *contract) stakeholders() []string { return union(c.signatories, c.observers) }

func (c *contract) argument() damlvalue.Record {
	if c.typ == nil {
		return c.arg
	}
	labelled, err := damlvalue.Label(wormhole.Encode(c.payload), *c.typ)
	if err != nil {
		return damlvalue.Record{ID: c.template}
	}
	return labelled.(damlvalue.Record)
}

func (c *contract) eventBlob() []byte { return c.blobOf(c.argument) }

// blobOf is eventBlob for a caller who has the argument already.
func (c *contract) blobOf(argument func() damlvalue.Record) []byte {
	if c.typ == nil {
		return c.blob
	}
	id, err := contractblob.ParseContractID(c.id)
	if err != nil {
		return nil
	}
	blob, err := contractblob.Encode(&contractblob.Contract{
		SerializationVersion: contractblob.SerializationKeyless,
		ContractID:           id,
		PackageName:          c.pkgName,
		TemplateID:           c.template,
		Argument:             argument(),
		Signatories:          c.signatories,
		Observers:            c.observers,
		CreatedAt:            c.createdAt.UnixMicro(),
		Salt:                 c.salt,
	})
	if err != nil {
		return nil
	}
	return blob
}

// newContract makes a contract with an id and a blob like a participant's. createdAt is the transaction's ledger time.
func (l *state) newContract(t *template, arg damlvalue.Record, signatories, observers []string, createdAt time.Time) (*contract, error) {
	draft := contractblob.Draft{
		CreatedAt: createdAt, PackageName: t.pkg.Name, TemplateID: t.name, Argument: arg,
		Signatories: signatories, Observers: observers,
	}
	l.random.fill(draft.Discriminator[:])
	l.random.fill(draft.Salt[:])
	made, blob, err := contractblob.NewContract(draft)
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", t.name.QualifiedName(), err)
	}
	return &contract{
		id: made.ContractID.String(), template: t.name, pkgName: t.pkg.Name,
		signatories: signatories, observers: observers, createdAt: createdAt.UTC().Truncate(time.Microsecond),
		payload: decodePayload(arg), arg: arg, blob: blob,
	}, nil
}

// contractOfBlob is a disclosed contract, as its blob tells it. The argument has no names.
func contractOfBlob(b *contractblob.Contract) *contract {
	return &contract{
		id: b.ContractID.String(), template: b.TemplateID, pkgName: b.PackageName,
		signatories: b.Signatories, observers: b.Observers, createdAt: b.CreatedTime(), arg: b.Argument,
	}
}

// translate gives a contract's argument as another version of its template has it: fields that the version lacks must be None,
// fields beyond the contract's are.
func (l *state) translate(c *contract, t *template) (damlvalue.Record, error) {
	arg := c.argument()
	if c.template == t.name && arg.Labelled() && !arg.ID.IsZero() {
		return arg, nil
	}
	plain := trimNones(withoutNames(arg).(damlvalue.Record))
	if len(plain.Fields) > len(t.typ.Fields) {
		return damlvalue.Record{}, translationFailed(c, t, fmt.Sprintf(
			"Found an optional contract field with a value of Some at index %d, may not be dropped during downgrading.", len(t.typ.Fields)))
	}
	typed, err := damlvalue.Label(plain, t.typ)
	if err != nil {
		return damlvalue.Record{}, translationFailed(c, t, err.Error())
	}
	return typed.(damlvalue.Record), nil
}

func translationFailed(c *contract, t *template, why string) error {
	return reject(invalidArgument, "INTERPRETATION_UPGRADE_ERROR_TRANSLATION_FAILED",
		"Interpretation error: Error: Translation of contract %s to a value of type %s@%.8s fails.\nReason: Type-checking fails  %s",
		c.id, t.name.QualifiedName(), t.pkg.ID, why).
		about("NULLABLE_CONTRACT_ID", c.id).about("TEMPLATE_ID", c.template.String()).about("TEMPLATE_ID", t.name.String()).
		about("CONTRACT_ARG", opaque(c)).ofSubmission()
}

// authenticate checks a disclosed contract as interpretation does: its stakeholders must follow from its argument, its package name
// must be the template's, and its id must belong to its content. The id does not cover its discriminator, and the package id
// inside of the blob may be any: both were seen on a participant.
func (l *state) authenticate(c *contract, d *disclosure, t *template) error {
	this, err := l.translate(c, t)
	if err != nil {
		return err
	}
	signatories, observers := t.stakeholders(this)
	if c.pkgName != t.pkg.Name || !slices.Equal(signatories, c.signatories) || !slices.Equal(observers, c.observers) {
		r := reject(invalidArgument, "INTERPRETATION_UPGRADE_ERROR_VALIDATION_FAILED",
			"Interpretation error: Error: Validation fails when trying to upgrade the contract %s from %s@%.8s to %s@%.8s\n"+
				"Verify that neither the signatories, nor the observers, nor the contract key, nor the key's maintainers, nor the package name have changed\n"+
				"original package name is %s", c.id, c.template.QualifiedName(), c.template.PackageID, t.name.QualifiedName(), t.pkg.ID, c.pkgName).
			about("CONTRACT_ID", c.id).about("TEMPLATE_ID", c.template.String()).about("TEMPLATE_ID", t.name.String()).
			about("PACKAGE_NAME", c.pkgName).about("PACKAGE_NAME", t.pkg.Name).ofSubmission()
		for _, of := range [][2][]string{{c.signatories, c.observers}, {signatories, observers}} {
			r.about("PARTIES", strings.Join(of[0], ",")).about("PARTIES", strings.Join(of[1], ",")).
				about("NULLABLE_CONTRACT_KEY", "NULL").about("NULLABLE_PACKAGE_NAME", "NULL").about("NULLABLE_PARTIES", "NULL")
		}
		return r
	}
	if d.unauthentic || contractblob.Recompute(d.contract, this) != nil {
		return reject(invalidArgument, "INTERPRETATION_UPGRADE_ERROR_AUTHENTICATION_FAILED",
			"Interpretation error: Error: Error when authenticating contract %s against template %s@%.8s : failed to authenticate contract\n"+
				"The contract is purportedly an instance of %s@%.8s", c.id, t.name.QualifiedName(), t.pkg.ID, c.template.QualifiedName(), c.template.PackageID).
			about("CONTRACT_ID", c.id).about("TEMPLATE_ID", c.template.String()).about("TEMPLATE_ID", t.name.String()).
			about("CONTRACT_ARG", opaque(c)).ofSubmission()
	}
	return nil
}

// opaque stands for the encoded argument that the participant attaches to some errors; clients can't read it.
func opaque(c *contract) string { return base64.StdEncoding.EncodeToString([]byte(c.id)) }

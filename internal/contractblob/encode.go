package contractblob

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// Encode writes the created event blob of a contract, in the bytes that a participant gives. It refuses what Decode would refuse,
// and does not look at whether the contract id belongs to the content.
func Encode(c *Contract) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("encoding a created event blob: %w", err)
	}
	var p prepender
	if err := p.contract(c); err != nil {
		return nil, fmt.Errorf("encoding a created event blob: %w", err)
	}
	p.close(versionedPayloadField, 0)
	p.textField(versionedVersionField, c.SerializationVersion)
	if p.size() > MaxBlobBytes {
		return nil, fmt.Errorf("encoding a created event blob: %w: %d bytes, at most %d", ErrMalformed, p.size(), MaxBlobBytes)
	}
	return slices.Clone(p.written()), nil
}

// contract writes a FatContractInstance. Everything is written from its end, so that the code reads from the last field to the
// first.
func (p *prepender) contract(c *Contract) error {
	plain := c.Signatories
	if c.Key != nil {
		if err := p.key(c.Key); err != nil {
			return err
		}
		plain = slices.DeleteFunc(slices.Clone(plain), func(s string) bool {
			_, maintains := slices.BinarySearch(c.Key.Maintainers, s)
			return maintains
		})
	}
	p.authentication(c.Salt)
	if c.CreatedAt != 0 {
		p.fixed64Field(createdAtField, uint64(c.CreatedAt))
	}
	for _, s := range slices.Backward(c.Observers) {
		p.textField(observersField, s)
	}
	for _, s := range slices.Backward(plain) {
		p.textField(signatoriesField, s)
	}
	end := p.size()
	if err := p.checkedValue("argument", c.Argument); err != nil {
		return err
	}
	p.close(createArgField, end)
	end = p.size()
	p.dottedName(identifierNameField, c.TemplateID.Entity)
	p.dottedName(identifierModuleField, c.TemplateID.Module)
	p.textField(identifierPackageField, c.TemplateID.PackageID)
	p.close(templateIDField, end)
	p.textField(packageNameField, c.PackageName)
	p.bytesField(contractIDField, c.ContractID.raw[:])
	return nil
}

func (p *prepender) key(k *Key) error {
	end := p.size()
	p.bytesField(keyHashField, k.Hash[:])
	for _, m := range slices.Backward(k.Maintainers) {
		p.textField(keyMaintainersField, m)
	}
	value := p.size()
	if err := p.checkedValue("key", k.Value); err != nil {
		return err
	}
	p.close(keyValueField, value)
	p.close(keyField, end)
	return nil
}

func (p *prepender) authentication(salt [32]byte) {
	field := p.size()
	p.varintField(untypedVersionField, authenticationVersion)
	data := p.size()
	p.bytesField(saltBytesField, salt[:])
	p.varintField(saltAlgorithmField, saltHMACSHA256)
	p.close(contractSaltField, data)
	p.close(untypedDataField, data)
	p.close(authenticationField, field)
}

func (p *prepender) dottedName(num protowire.Number, name string) {
	for {
		dot := strings.LastIndexByte(name, '.')
		p.textField(num, name[dot+1:])
		if dot < 0 {
			return
		}
		name = name[:dot]
	}
}

// checkedValue writes a value and reads it again: that finds everything that no participant gives, such as a text with NUL.
func (p *prepender) checkedValue(what string, v damlvalue.Value) error {
	end := p.size()
	if err := p.prependValue(v, 0); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	_, err := decodeValue(what, p.buf[p.at:len(p.buf)-end])
	return err
}

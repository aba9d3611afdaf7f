package contractblob

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// The fields of the messages around a contract's argument (Daml-LF's transaction.proto; Canton's untyped_versioned_message.proto,
// protocol/v30/common.proto and crypto/v30/crypto.proto).
const (
	versionedVersionField = 1
	versionedPayloadField = 2

	contractIDField     = 1
	packageNameField    = 2
	templateIDField     = 3
	createArgField      = 4
	signatoriesField    = 5 // those that are no maintainers of the key
	observersField      = 6
	createdAtField      = 7
	authenticationField = 8
	packageVersionField = 9 // not in use
	keyField            = 1001

	identifierPackageField = 1
	identifierModuleField  = 2
	identifierNameField    = 3

	keyValueField       = 1
	keyMaintainersField = 2
	keyHashField        = 3

	untypedDataField    = 1
	untypedVersionField = 2
	contractSaltField   = 1
	saltAlgorithmField  = 1
	saltBytesField      = 2

	authenticationVersion = 30
	saltHMACSHA256        = 1
)

// Decode reads a created event blob. Its errors wrap ErrMalformed or ErrUnsupported and say where the fault is. A nil error means that
// the blob is well formed, not that its contract id belongs to it: see Recompute and Check.
//
// The texts of the result's argument share one copy of the argument's bytes, and none with blob.
func Decode(blob []byte) (*Contract, error) {
	e, err := openEnvelope(blob)
	if err != nil {
		return nil, fmt.Errorf("created event blob: %w", err)
	}
	if err := e.decodeArgument(); err != nil {
		return nil, fmt.Errorf("created event blob: %w", err)
	}
	c := e.contract // without the argument's bytes, which are the caller's blob
	return &c, nil
}

// ContractIDOf reads the contract id that a blob is of, and everything else but the argument only as far as to see that it is well
// formed: a look at a stored blob that costs little. Errors are as Decode's.
func ContractIDOf(blob []byte) (ContractID, error) {
	e, err := openEnvelope(blob)
	if err != nil {
		return ContractID{}, fmt.Errorf("created event blob: %w", err)
	}
	return e.contract.ContractID, nil
}

// envelope is a blob whose argument was not yet decoded.
type envelope struct {
	contract Contract
	// argument is the bytes of the argument, a part of the blob.
	argument []byte
}

func (e *envelope) decodeArgument() error {
	v, err := decodeValue("create_arg", e.argument)
	if err != nil {
		return err
	}
	record, ok := v.(damlvalue.Record)
	if !ok {
		return fmt.Errorf("create_arg: %w: %s, want a record", ErrMalformed, damlvalue.Kind(v))
	}
	e.contract.Argument = record
	return nil
}

func openEnvelope(blob []byte) (*envelope, error) {
	e := &envelope{}
	return e, e.open(blob)
}

// open reads everything of a blob but the argument.
func (e *envelope) open(blob []byte) error {
	if len(blob) == 0 {
		return fmt.Errorf("%w: empty", ErrMalformed)
	}
	if len(blob) > MaxBlobBytes {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrMalformed, len(blob), MaxBlobBytes)
	}
	var version, payload []byte
	m := newMessage("versioned", blob)
	err := m.each(func() error {
		switch m.num {
		case versionedVersionField:
			return m.onceBytes(&version)
		case versionedPayloadField:
			return m.onceBytes(&payload)
		default:
			return m.unknown()
		}
	})
	switch {
	case err != nil:
		return err
	case string(version) == SerializationKeyless:
		return e.openContract(SerializationKeyless, payload)
	case string(version) == SerializationKeyed:
		return e.openContract(SerializationKeyed, payload)
	case len(version) == 0:
		return fmt.Errorf("versioned: %w: no version", ErrMalformed)
	default:
		return fmt.Errorf("versioned: %w: serialization version %q", ErrUnsupported, clip(string(version)))
	}
}

// openContract reads a FatContractInstance.
func (e *envelope) openContract(version string, payload []byte) error {
	c := &e.contract
	c.SerializationVersion = version
	var contractID, template, key, authentication []byte
	var createdAt uint64
	m := newMessage("contract", payload)
	err := m.each(func() error {
		switch m.num {
		case contractIDField:
			return m.onceBytes(&contractID)
		case packageNameField:
			return m.onceText(&c.PackageName)
		case templateIDField:
			return m.onceBytes(&template)
		case createArgField:
			return m.onceBytes(&e.argument)
		case signatoriesField:
			return m.appendText(&c.Signatories)
		case observersField:
			return m.appendText(&c.Observers)
		case createdAtField:
			return m.onceNumber(&createdAt, protowire.Fixed64Type)
		case authenticationField:
			return m.onceBytes(&authentication)
		case packageVersionField:
			return fmt.Errorf("contract: %w: a package version", ErrUnsupported)
		case keyField:
			return m.onceBytes(&key)
		default:
			return m.unknown()
		}
	})
	if err != nil {
		return err
	}
	if c.ContractID, err = ContractIDFromBytes(contractID); err != nil {
		return err
	}
	if c.TemplateID, err = decodeIdentifier(template); err != nil {
		return err
	}
	c.CreatedAt = int64(createdAt)
	if c.Salt, err = decodeAuthentication(authentication); err != nil {
		return err
	}
	if key != nil {
		if c.Key, err = decodeKey(key); err != nil {
			return err
		}
		if err := c.joinMaintainers(); err != nil {
			return err
		}
	}
	return c.check()
}

// joinMaintainers adds the key's maintainers, which a blob gives apart, to the signatories.
func (c *Contract) joinMaintainers() error {
	if err := checkPartyList("non-maintainer signatories", c.Signatories); err != nil {
		return err
	}
	if both, ok := shared(c.Signatories, c.Key.Maintainers); ok {
		return fmt.Errorf("%w: party %q is a maintainer and a non-maintainer signatory", ErrMalformed, both)
	}
	c.Signatories = append(c.Signatories, c.Key.Maintainers...)
	slices.Sort(c.Signatories)
	return nil
}

// decodeIdentifier reads an Identifier. Its repeated fields are a name's segments; joined by dots they are the name.
func decodeIdentifier(b []byte) (id damlvalue.TypeName, err error) {
	m := newMessage("template_id", b)
	var inPlace [2][64]byte // longer names are allocated
	module, entity := inPlace[0][:0], inPlace[1][:0]
	err = m.each(func() error {
		var err error
		switch m.num {
		case identifierPackageField:
			return m.onceText(&id.PackageID)
		case identifierModuleField:
			module, err = joinSegment(&m, module)
		case identifierNameField:
			entity, err = joinSegment(&m, entity)
		default:
			return m.unknown()
		}
		return err
	})
	id.Module, id.Entity = string(module), string(entity)
	return id, err
}

// joinSegment appends the field's segment to a name.
func joinSegment(m *message, name []byte) ([]byte, error) {
	segment, err := m.bytes()
	if err != nil {
		return name, err
	}
	if !validSegment(segment) {
		return name, fmt.Errorf("template_id: %w: %q is not a segment of a name", ErrMalformed, clip(string(segment)))
	}
	if len(name) == 0 {
		return append(name, segment...), nil
	}
	// The length is bounded here and not only at the end, so that many segments cost no more than their bytes.
	if len(name)+1+len(segment) > maxNameBytes {
		return name, fmt.Errorf("template_id: %w: a name of more than %d characters", ErrMalformed, maxNameBytes)
	}
	return append(append(name, '.'), segment...), nil
}

func decodeKey(b []byte) (*Key, error) {
	k := &Key{}
	var value, hash []byte
	m := newMessage("key", b)
	err := m.each(func() error {
		switch m.num {
		case keyValueField:
			return m.onceBytes(&value)
		case keyMaintainersField:
			return m.appendText(&k.Maintainers)
		case keyHashField:
			return m.onceBytes(&hash)
		default:
			return m.unknown()
		}
	})
	if err != nil {
		return nil, err
	}
	if len(hash) != len(k.Hash) {
		return nil, fmt.Errorf("key: %w: a hash of %d bytes, want %d", ErrMalformed, len(hash), len(k.Hash))
	}
	copy(k.Hash[:], hash)
	// Participants read maintainers in any order and write them in ascending order.
	slices.Sort(k.Maintainers)
	k.Value, err = decodeValue("key", value)
	return k, err
}

// decodeAuthentication reads the salt out of the authentication data.
func decodeAuthentication(b []byte) (salt [32]byte, err error) {
	var data, contractSalt, bytes []byte
	var version, algorithm uint64
	m := newMessage("authentication_data", b)
	err = m.each(func() error {
		switch m.num {
		case untypedDataField:
			return m.onceBytes(&data)
		case untypedVersionField:
			return m.onceNumber(&version, protowire.VarintType)
		default:
			return m.unknown()
		}
	})
	if err != nil {
		return salt, err
	}
	if version != authenticationVersion {
		return salt, fmt.Errorf("authentication_data: %w: version %d, known is %d", ErrUnsupported, version, authenticationVersion)
	}
	m = newMessage("contract authentication data", data)
	err = m.each(func() error {
		if m.num != contractSaltField {
			return m.unknown()
		}
		return m.onceBytes(&contractSalt)
	})
	if err != nil {
		return salt, err
	}
	m = newMessage("salt", contractSalt)
	err = m.each(func() error {
		switch m.num {
		case saltAlgorithmField:
			return m.onceNumber(&algorithm, protowire.VarintType)
		case saltBytesField:
			return m.onceBytes(&bytes)
		default:
			return m.unknown()
		}
	})
	if err != nil {
		return salt, err
	}
	if algorithm != saltHMACSHA256 {
		return salt, fmt.Errorf("salt: %w: algorithm %d, known is %d (HMAC-SHA-256)", ErrUnsupported, algorithm, saltHMACSHA256)
	}
	if len(bytes) != len(salt) {
		return salt, fmt.Errorf("salt: %w: %d bytes, want %d", ErrMalformed, len(bytes), len(salt))
	}
	copy(salt[:], bytes)
	return salt, nil
}

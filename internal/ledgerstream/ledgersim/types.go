package ledgersim

import (
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// The types that the packages below define beside the model's own payloads, and the standard library's that occur in results.
// The ids of standard library packages are those of Daml's stable packages.

const (
	tuplePackageID   = "5aee9b21b8e9a4c4975b5f4c4198e6e6e8469df49e2010820e792f393db870f4"
	archivePackageID = "9e70a8b3510d617f8a136213f33d6a903a10ca0eeec76bb06ba55d1ed9680f69"
)

var tupleName = damlvalue.TypeName{PackageID: tuplePackageID, Module: "DA.Types", Entity: "Tuple2"}

// archiveType is the argument of the choice Archive, which every template has.
var archiveType = damlvalue.RecordType{Name: damlvalue.TypeName{PackageID: archivePackageID, Module: "DA.Internal.Template", Entity: "Archive"}}

func tupleType(first, second damlvalue.Type) damlvalue.RecordType {
	return damlvalue.RecordType{Name: tupleName, Fields: []damlvalue.FieldType{{Label: "_1", Type: first}, {Label: "_2", Type: second}}}
}

func tuple(first, second damlvalue.Value) damlvalue.Record {
	return damlvalue.Record{ID: tupleName, Fields: []damlvalue.Field{{Label: "_1", Value: first}, {Label: "_2", Value: second}}}
}

func recordType(module, entity string, fields ...damlvalue.FieldType) damlvalue.RecordType {
	return damlvalue.RecordType{Name: damlvalue.TypeName{Module: module, Entity: entity}, Fields: fields}
}

func field(label string, t damlvalue.Type) damlvalue.FieldType {
	return damlvalue.FieldType{Label: label, Type: t}
}

const (
	replayModule     = "Wormhole.Core.Replay"
	stateModule      = "Wormhole.Core.State"
	emittersModule   = "Wormhole.Core.Emitters"
	vaaModule        = "Wormhole.Core.VAA"
	integratorModule = "Example.Integrator"
)

var pubKeysType = damlvalue.ListType{Elem: tupleType(damlvalue.IntType, damlvalue.TextType)}

// Payloads of templates that package wormhole has no schema of.
var (
	integratorType = recordType(integratorModule, "ExampleIntegrator",
		field("manager", damlvalue.PartyType), field("operator", damlvalue.PartyType),
		field("users", damlvalue.ListType{Elem: damlvalue.PartyType}),
		field("peerChain", damlvalue.IntType), field("peerAddress", damlvalue.TextType))
	receiptType = recordType(integratorModule, "RedeemReceipt",
		field("manager", damlvalue.PartyType), field("redeemer", damlvalue.PartyType),
		field("sequence", damlvalue.IntType), field("payload", damlvalue.TextType))
)

// Choice arguments.
var (
	consumeDigestType     = recordType(replayModule, "ConsumeDigest", field("digest", damlvalue.TextType))
	grantReplayRootType   = recordType(replayModule, "GrantReplayRoot", field("consumer", damlvalue.PartyType))
	approveReplayRootType = recordType(replayModule, "ApproveReplayRoot", field("registryCid", damlvalue.ContractIDType))
	getOperatorType       = recordType(stateModule, "GetOperator", field("reader", damlvalue.PartyType))
	verifyAndConsumeType  = recordType(stateModule, "VerifyAndConsumeVAA",
		field("encodedVAA", damlvalue.TextType), field("pubKeys", pubKeysType),
		field("consumer", damlvalue.PartyType), field("replayNodeCid", damlvalue.ContractIDType))
	parseAndVerifyType = recordType(stateModule, "ParseAndVerifyVAA",
		field("verifier", damlvalue.PartyType), field("encodedVAA", damlvalue.TextType), field("pubKeys", pubKeysType))
	submitGovernanceType = recordType(stateModule, "SubmitGovernanceVAA",
		field("encodedVAA", damlvalue.TextType), field("pubKeys", pubKeysType))
	allocateEmitterType = recordType(emittersModule, "AllocateEmitterId")
	registerEmitterType = recordType(emittersModule, "RegisterEmitter", field("owner", damlvalue.PartyType))
	approveEmitterType  = recordType(emittersModule, "ApproveEmitter", field("registryCid", damlvalue.ContractIDType))
	publishMessageType  = recordType(emittersModule, "PublishMessage",
		field("nonce", damlvalue.IntType), field("payload", damlvalue.TextType), field("consistencyLevel", damlvalue.IntType))
	redeemType = recordType(integratorModule, "Redeem",
		field("redeemer", damlvalue.PartyType), field("coreStateCid", damlvalue.ContractIDType),
		field("replayNodeCid", damlvalue.ContractIDType), field("encodedVAA", damlvalue.TextType), field("pubKeys", pubKeysType))
)

var vaaSignatureType = recordType(vaaModule, "Signature",
	field("guardianIndex", damlvalue.IntType), field("r", damlvalue.TextType), field("s", damlvalue.TextType), field("v", damlvalue.IntType))

// vaaType is the result of parsing a VAA.
var vaaType = recordType(vaaModule, "VAA",
	field("version", damlvalue.IntType), field("guardianSetIndex", damlvalue.IntType),
	field("signatures", damlvalue.ListType{Elem: vaaSignatureType}),
	field("timestamp", damlvalue.IntType), field("nonce", damlvalue.IntType), field("emitterChain", damlvalue.IntType),
	field("emitterAddress", damlvalue.TextType), field("sequence", damlvalue.IntType), field("consistencyLevel", damlvalue.IntType),
	field("payload", damlvalue.TextType), field("digest", damlvalue.TextType))

// inPackage is the type with the package's id in all names that have none.
func inPackage(t damlvalue.Type, packageID string) damlvalue.Type {
	switch t := t.(type) {
	case damlvalue.OptionalType:
		return damlvalue.OptionalType{Elem: inPackage(t.Elem, packageID)}
	case damlvalue.ListType:
		return damlvalue.ListType{Elem: inPackage(t.Elem, packageID)}
	case damlvalue.TextMapType:
		return damlvalue.TextMapType{Value: inPackage(t.Value, packageID)}
	case damlvalue.GenMapType:
		return damlvalue.GenMapType{Key: inPackage(t.Key, packageID), Value: inPackage(t.Value, packageID)}
	case damlvalue.RecordType:
		return recordInPackage(t, packageID)
	default:
		return t
	}
}

func recordInPackage(t damlvalue.RecordType, packageID string) damlvalue.RecordType {
	out := damlvalue.RecordType{Name: t.Name, Fields: make([]damlvalue.FieldType, len(t.Fields))}
	if out.Name.PackageID == "" {
		out.Name.PackageID = packageID
	}
	for i, f := range t.Fields {
		out.Fields[i] = damlvalue.FieldType{Label: f.Label, Type: inPackage(f.Type, packageID)}
	}
	return out
}

// modelType is the payload's type with the given number of fields: the version's place in package wormhole's list of known
// versions, by which this room and that one can't disagree.
func modelType(name damlvalue.TypeName, fields int) damlvalue.RecordType {
	for _, t := range wormhole.Schemas(name.QualifiedName()) {
		if rec, ok := t.(damlvalue.RecordType); ok && len(rec.Fields) == fields {
			return rec
		}
	}
	return damlvalue.RecordType{Name: name}
}

// withNote is ReplayNode as version 0.2.0 has it.
func withNote(t damlvalue.RecordType) damlvalue.RecordType {
	out := damlvalue.RecordType{Name: t.Name}
	out.Fields = append(append(out.Fields, t.Fields...), field("note", damlvalue.OptionalType{Elem: damlvalue.TextType}))
	return out
}

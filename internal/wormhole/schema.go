package wormhole

import (
	"github.com/disclosured/disclosured/internal/damlvalue"
)

// PackageName is the name of the package that defines the templates below.
const PackageName = "wormhole-core"

// The templates of the model, without a package id: versions of the package have different ones. The first five are served;
// the two requests are proposals that live until they are approved.
var (
	ReplayNodeTemplate         = damlvalue.TypeName{Module: "Wormhole.Core.Replay", Entity: "ReplayNode"}
	CoreStateTemplate          = damlvalue.TypeName{Module: "Wormhole.Core.State", Entity: "CoreState"}
	ReplayRootRegistryTemplate = damlvalue.TypeName{Module: "Wormhole.Core.Replay", Entity: "ReplayRootRegistry"}
	EmitterRegistryTemplate    = damlvalue.TypeName{Module: "Wormhole.Core.Emitters", Entity: "EmitterRegistry"}
	EmitterTemplate            = damlvalue.TypeName{Module: "Wormhole.Core.Emitters", Entity: "Emitter"}

	ReplayRootRequestTemplate = damlvalue.TypeName{Module: "Wormhole.Core.Replay", Entity: "ReplayRootRequest"}
	EmitterRequestTemplate    = damlvalue.TypeName{Module: "Wormhole.Core.Emitters", Entity: "EmitterRequest"}
)

var guardianSetName = damlvalue.TypeName{Module: "Wormhole.Core.GuardianSet", Entity: "GuardianSet"}

// Templates returns the served templates, without package ids.
func Templates() []damlvalue.TypeName {
	return []damlvalue.TypeName{
		ReplayNodeTemplate, CoreStateTemplate, ReplayRootRegistryTemplate, EmitterRegistryTemplate, EmitterTemplate,
	}
}

// Schemas returns the payload's type in every known version of the template, newest first; nil for a template that is none of
// the model's. qualifiedName is "Module:Entity". The types' package ids are empty, but for the standard library's Set.
//
// Where the versions come from: the fields of wormhole-core 0.1.0 are those of the model. ReplayNode with a namespace is as a
// package 0.4.0 on a real participant had it, after the operator. CoreState and EmitterRegistry exist with and without a
// guardianObserver. A later ReplayRootRegistry (operator, claimFee, …) is known by two field names only and has no schema.
func Schemas(qualifiedName string) []damlvalue.Type {
	versions := schemas[qualifiedName]
	out := make([]damlvalue.Type, len(versions))
	for i, v := range versions {
		out[i] = v
	}
	return out
}

var schemas = map[string][]damlvalue.RecordType{
	ReplayNodeTemplate.QualifiedName():         {replayNodeNamespaced, replayNodePlain},
	CoreStateTemplate.QualifiedName():          {coreStateObserved, coreStatePlain},
	ReplayRootRegistryTemplate.QualifiedName(): {rootRegistryGranted},
	EmitterRegistryTemplate.QualifiedName():    {emitterRegistryObserved, emitterRegistryPlain},
	EmitterTemplate.QualifiedName():            {emitterType},
	ReplayRootRequestTemplate.QualifiedName():  {rootRequestType},
	EmitterRequestTemplate.QualifiedName():     {emitterRequestType},
}

var (
	replayNodePlain = recordType(ReplayNodeTemplate,
		field("consumer", damlvalue.PartyType),
		field("operator", damlvalue.PartyType),
		field("prefix", damlvalue.TextType),
		field("splitThreshold", damlvalue.IntType),
		field("consumed", damlvalue.SetType(damlvalue.TextType)),
	)
	replayNodeNamespaced = recordType(ReplayNodeTemplate,
		field("consumer", damlvalue.PartyType),
		field("operator", damlvalue.PartyType),
		field("namespace", damlvalue.TextType),
		field("prefix", damlvalue.TextType),
		field("splitThreshold", damlvalue.IntType),
		field("consumed", damlvalue.SetType(damlvalue.TextType)),
	)

	guardianSetType = recordType(guardianSetName,
		field("keys", damlvalue.ListType{Elem: damlvalue.TextType}),
		field("expirationTime", damlvalue.OptionalType{Elem: damlvalue.TimestampType}),
	)
	coreStatePlain = recordType(CoreStateTemplate,
		field("operator", damlvalue.PartyType),
		field("guardianGovernance", damlvalue.PartyType),
		field("chainId", damlvalue.IntType),
		field("governanceChainId", damlvalue.IntType),
		field("governanceContract", damlvalue.TextType),
		field("guardianSetIndex", damlvalue.IntType),
		field("guardianSets", damlvalue.GenMapType{Key: damlvalue.IntType, Value: guardianSetType}),
		field("messageFee", damlvalue.IntType),
		field("consumedGovernance", damlvalue.SetType(damlvalue.TextType)),
	)
	coreStateObserved = recordType(CoreStateTemplate, inserted(coreStatePlain.Fields, 2, field("guardianObserver", damlvalue.PartyType))...)

	rootRegistryGranted = recordType(ReplayRootRegistryTemplate,
		field("operator", damlvalue.PartyType),
		field("granted", damlvalue.SetType(damlvalue.PartyType)),
	)
	rootRequestType = recordType(ReplayRootRequestTemplate,
		field("consumer", damlvalue.PartyType),
		field("operator", damlvalue.PartyType),
		field("splitThreshold", damlvalue.IntType),
	)

	emitterRegistryPlain = recordType(EmitterRegistryTemplate,
		field("operator", damlvalue.PartyType),
		field("nextId", damlvalue.IntType),
	)
	emitterRegistryObserved = recordType(EmitterRegistryTemplate,
		field("operator", damlvalue.PartyType),
		field("guardianObserver", damlvalue.PartyType),
		field("nextId", damlvalue.IntType),
	)
	emitterType = recordType(EmitterTemplate,
		field("operator", damlvalue.PartyType),
		field("owner", damlvalue.PartyType),
		field("emitterId", damlvalue.IntType),
		field("emitterAddress", damlvalue.TextType),
		field("sequence", damlvalue.IntType),
	)
	emitterRequestType = recordType(EmitterRequestTemplate,
		field("owner", damlvalue.PartyType),
		field("operator", damlvalue.PartyType),
	)
)

func recordType(name damlvalue.TypeName, fields ...damlvalue.FieldType) damlvalue.RecordType {
	return damlvalue.RecordType{Name: name, Fields: fields}
}

func field(label string, t damlvalue.Type) damlvalue.FieldType {
	return damlvalue.FieldType{Label: label, Type: t}
}

// inserted is fields with one more at place i.
func inserted(fields []damlvalue.FieldType, i int, f damlvalue.FieldType) []damlvalue.FieldType {
	out := make([]damlvalue.FieldType, 0, len(fields)+1)
	out = append(out, fields[:i]...)
	out = append(out, f)
	return append(out, fields[i:]...)
}

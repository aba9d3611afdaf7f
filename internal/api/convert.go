package api

import (
	"maps"
	"slices"

	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// disclosable refuses a contract whose blob must not be served. Entries that count have theirs; this is the last look before a
// blob leaves the service.
func disclosable(e *index.Entry) error {
	if len(e.Blob) > 0 && (e.BlobCheck == ledger.BlobVerified || e.BlobCheck == ledger.BlobUnverifiable) {
		return nil
	}
	return failure(BlobIncomplete, "the contract's created event blob is not at hand").with("contract_id", e.ContractID)
}

// contract is an active contract as the answer to the options: without its blob where the caller has it.
func (r *reading) contract(e *index.Entry) *disclosurev1.Contract {
	c := describe(e)
	c.Unchanged = contains(r.opts.not, e.ContractID)
	if r.withoutBlobs || contains(r.opts.known, e.ContractID) {
		c.BlobOmitted = true
	} else {
		c.CreatedEventBlob = e.Blob
	}
	return c
}

// describe is all about a contract but its blob.
func describe(e *index.Entry) *disclosurev1.Contract {
	return &disclosurev1.Contract{
		ContractId:          e.ContractID,
		TemplateId:          identifier(e.TemplateID),
		PackageName:         e.PackageName,
		SynchronizerId:      e.SynchronizerID,
		ReassignmentCounter: e.ReassignmentCounter,
		Offset:              e.Offset,
		UpdateId:            e.UpdateID,
		CreatedAt:           timestamp(e.CreatedAt),
		BlobCheck:           blobCheck(e.BlobCheck),
		Signatories:         e.Signatories,
	}
}

// disclosure is the contract as a submission takes it; nil where the caller has it.
func (r *reading) disclosure(e *index.Entry) *disclosurev1.DisclosedContract {
	if contains(r.opts.known, e.ContractID) {
		return nil
	}
	return &disclosurev1.DisclosedContract{
		TemplateId:       identifier(e.TemplateID),
		ContractId:       e.ContractID,
		CreatedEventBlob: e.Blob,
		SynchronizerId:   e.SynchronizerID,
	}
}

// disclosures are the entries' disclosures in their order, each contract once.
func (r *reading) disclosures(entries ...*index.Entry) []*disclosurev1.DisclosedContract {
	var disclosed []*disclosurev1.DisclosedContract
	for i, e := range entries {
		doubled := slices.ContainsFunc(entries[:i], func(before *index.Entry) bool { return before.ContractID == e.ContractID })
		if d := r.disclosure(e); d != nil && !doubled {
			disclosed = append(disclosed, d)
		}
	}
	return disclosed
}

func (r *reading) replayNode(e *index.Entry) *disclosurev1.ReplayNode {
	node, ok := e.Payload.(*wormhole.ReplayNode)
	if !ok {
		return nil
	}
	return &disclosurev1.ReplayNode{
		Contract:         r.contract(e),
		Scope:            scopeMessage(index.ScopeOf(e.PackageName, node)),
		Prefix:           node.Prefix.String(),
		ConsumedCount:    int64(node.Consumed.Len()),
		SplitThreshold:   node.SplitThreshold,
		ParentContractId: e.ParentID,
	}
}

func (r *reading) coreState(e *index.Entry) *disclosurev1.CoreState {
	core, ok := e.Payload.(*wormhole.CoreState)
	if !ok {
		return nil
	}
	message := &disclosurev1.CoreState{
		Contract:           r.contract(e),
		Operator:           core.Operator,
		GuardianGovernance: core.GuardianGovernance,
		GuardianObserver:   core.GuardianObserver,
		ChainId:            core.ChainID,
		GovernanceChainId:  core.GovernanceChainID,
		GovernanceContract: core.GovernanceContract,
		GuardianSetIndex:   core.GuardianSetIndex,
		MessageFee:         core.MessageFee,
	}
	for _, i := range slices.Sorted(maps.Keys(core.GuardianSets)) {
		set := core.GuardianSets[i]
		one := &disclosurev1.GuardianSet{Index: i, Keys: set.Keys}
		if set.Expiration != nil {
			one.ExpirationTime = timestamp(*set.Expiration)
		}
		message.GuardianSets = append(message.GuardianSets, one)
	}
	return message
}

func identifier(name damlvalue.TypeName) *disclosurev1.Identifier {
	return &disclosurev1.Identifier{PackageId: name.PackageID, ModuleName: name.Module, EntityName: name.Entity}
}

func blobCheck(c ledger.BlobCheck) disclosurev1.BlobCheck {
	switch c {
	case ledger.BlobVerified:
		return disclosurev1.BlobCheck_BLOB_CHECK_VERIFIED
	case ledger.BlobUnverifiable:
		return disclosurev1.BlobCheck_BLOB_CHECK_UNVERIFIABLE
	default:
		return disclosurev1.BlobCheck_BLOB_CHECK_UNSPECIFIED
	}
}

func scopeMessage(s index.Scope) *disclosurev1.Scope {
	message := &disclosurev1.Scope{PackageName: s.PackageName, Operator: s.Operator, Consumer: s.Consumer}
	if s.Namespace.Present {
		message.Namespace = &s.Namespace.Value
	}
	return message
}

func findings(list []index.Finding) []*disclosurev1.Finding {
	messages := make([]*disclosurev1.Finding, len(list))
	for i, f := range list {
		messages[i] = &disclosurev1.Finding{
			Kind: string(f.Kind), Prefix: f.Prefix.String(), ContractIds: f.ContractIDs, Count: int64(f.Count), Detail: clip(f.Detail, maxMessageBytes),
		}
		if f.Scope != nil {
			messages[i].Scope = scopeMessage(*f.Scope)
		}
	}
	return messages
}

// sortedKeys are a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

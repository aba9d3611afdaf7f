package ledgerstream

import (
	"github.com/disclosured/disclosured/internal/contractblob"
	"github.com/disclosured/disclosured/internal/damlvalue"
	"github.com/disclosured/disclosured/internal/ledger"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// decodePayload reads a contract's arguments as the model's type of its template.
func decodePayload(template damlvalue.TypeName, arguments damlvalue.Record) (wormhole.Payload, error) {
	return wormhole.Decode(template, arguments)
}

// checkBlob checks the contract's blob against its event and its id, and notes the result in the contract.
func checkBlob(c *ledger.Contract, arguments damlvalue.Record) {
	if len(c.Blob) == 0 {
		c.BlobCheck = ledger.BlobMissing
		c.BlobFault = "the event came without a created event blob"
		return
	}
	result, err := contractblob.Check(c.Blob, contractblob.Facts{
		ContractID:  c.ContractID,
		TemplateID:  c.TemplateID,
		PackageName: c.PackageName,
		Signatories: c.Signatories,
		Observers:   c.Observers,
		CreatedAt:   c.CreatedAt,
		Argument:    arguments,
	}, wormhole.Schemas(c.TemplateID.QualifiedName()))
	switch result {
	case contractblob.Verified:
		c.BlobCheck = ledger.BlobVerified
	case contractblob.Unverifiable:
		c.BlobCheck = ledger.BlobUnverifiable
	default:
		c.BlobCheck = ledger.BlobMismatch
	}
	if err != nil {
		c.BlobFault = err.Error()
	}
}

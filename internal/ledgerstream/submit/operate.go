package submit

import (
	"context"
	"fmt"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
)

// Version asks for the version of the participant's software.
func (c *Client) Version(ctx context.Context) (string, error) {
	answer, err := v2.NewVersionServiceClient(c.conn).GetLedgerApiVersion(ctx, &v2.GetLedgerApiVersionRequest{})
	if err != nil {
		return "", fmt.Errorf("get ledger API version: %w", rejected(err))
	}
	return answer.GetVersion(), nil
}

// Prune asks the participant to forget what happened up to the offset, which it may refuse: as long as it may need it itself
// (UNSAFE_TO_PRUNE), or because the offset is not before ledger end. It needs an administrator's rights.
func (c *Client) Prune(ctx context.Context, upTo int64) error {
	request := &admin.PruneRequest{PruneUpTo: upTo, PruneAllDivulgedContracts: true}
	if _, err := admin.NewParticipantPruningServiceClient(c.conn).Prune(ctx, request); err != nil {
		return fmt.Errorf("prune up to offset %d: %w", upTo, rejected(err))
	}
	return nil
}

// PrunedTo is the offset up to which the participant has forgotten what happened, 0 for none.
func (c *Client) PrunedTo(ctx context.Context) (int64, error) {
	answer, err := c.state.GetLatestPrunedOffsets(ctx, &v2.GetLatestPrunedOffsetsRequest{})
	if err != nil {
		return 0, fmt.Errorf("get pruned offsets: %w", rejected(err))
	}
	return answer.GetParticipantPrunedUpToInclusive(), nil
}

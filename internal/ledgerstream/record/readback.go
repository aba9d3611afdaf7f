package record

import (
	"context"
	"errors"
	"fmt"
	"io"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/grpc"
)

// ReadBack makes, over a recorded connection, the reads that package replay feeds to a client: the active contracts at two offsets, and the
// updates between them, of the templates as the service reads them (by package name, with blobs, verbose, ACS_DELTA), for the parties. So a
// recording of submissions holds what they led to as well. begin and end are ledger offsets, begin not pruned and end not past ledger end;
// templates are by package name.
func ReadBack(ctx context.Context, conn grpc.ClientConnInterface, parties []string, templates map[string][]Template, begin, end int64) error {
	format := eventFormat(parties, templates)
	for _, at := range []int64{begin, end} {
		stream, err := v2.NewStateServiceClient(conn).GetActiveContracts(Note(ctx, "the active contracts at offset %d", at),
			&v2.GetActiveContractsRequest{ActiveAtOffset: at, EventFormat: format})
		if err != nil {
			return fmt.Errorf("read back the active contracts at offset %d: %w", at, err)
		}
		if err := drain(stream.Recv); err != nil {
			return fmt.Errorf("read back the active contracts at offset %d: %w", at, err)
		}
	}
	stream, err := v2.NewUpdateServiceClient(conn).GetUpdates(Note(ctx, "the updates after offset %d, through %d", begin, end), &v2.GetUpdatesRequest{
		BeginExclusive: begin, EndInclusive: &end,
		UpdateFormat: &v2.UpdateFormat{
			IncludeTransactions:   &v2.TransactionFormat{EventFormat: format, TransactionShape: v2.TransactionShape_TRANSACTION_SHAPE_ACS_DELTA},
			IncludeReassignments:  format,
			IncludeTopologyEvents: &v2.TopologyFormat{IncludeParticipantAuthorizationEvents: &v2.ParticipantAuthorizationTopologyFormat{Parties: parties}},
		},
	})
	if err != nil {
		return fmt.Errorf("read back the updates after offset %d: %w", begin, err)
	}
	if err := drain(stream.Recv); err != nil {
		return fmt.Errorf("read back the updates after offset %d: %w", begin, err)
	}
	return nil
}

// Template names a template in its module.
type Template struct{ Module, Entity string }

// eventFormat asks for the templates, by the names of their packages.
func eventFormat(parties []string, templates map[string][]Template) *v2.EventFormat {
	filters := &v2.Filters{}
	for name, list := range templates {
		for _, t := range list {
			filters.Cumulative = append(filters.Cumulative, &v2.CumulativeFilter{IdentifierFilter: &v2.CumulativeFilter_TemplateFilter{
				TemplateFilter: &v2.TemplateFilter{
					TemplateId:              &v2.Identifier{PackageId: "#" + name, ModuleName: t.Module, EntityName: t.Entity},
					IncludeCreatedEventBlob: true,
				},
			}})
		}
	}
	format := &v2.EventFormat{FiltersByParty: map[string]*v2.Filters{}, Verbose: true}
	for _, p := range parties {
		format.FiltersByParty[p] = filters
	}
	return format
}

func drain[M any](next func() (M, error)) error {
	for {
		if _, err := next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

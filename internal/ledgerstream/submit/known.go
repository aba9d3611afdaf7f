package submit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	v2 "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2/admin"
	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/internal/damlvalue"
)

// What is there already: whoever sets a ledger up and may be interrupted asks first, and makes only what is missing.

// FindParty looks for the party that AllocateParty would have made of the hint: on a participant with an id of its own, its name is the
// hint and its fingerprint the participant's.
func (c *Client) FindParty(ctx context.Context, hint string) (id string, found bool, err error) {
	participant, err := c.ParticipantID(ctx)
	if err != nil {
		return "", false, fmt.Errorf("find party %q: %w", hint, err)
	}
	_, fingerprint, ok := strings.Cut(participant, "::")
	if !ok {
		return "", false, fmt.Errorf("find party %q: the participant's id %q has no fingerprint", hint, participant)
	}
	id = hint + "::" + fingerprint
	answer, err := c.parties.GetParties(ctx, &admin.GetPartiesRequest{Parties: []string{id}})
	if err != nil {
		return "", false, fmt.Errorf("find party %q: %w", hint, rejected(err))
	}
	for _, p := range answer.GetPartyDetails() {
		if p.GetParty() == id && p.GetIsLocal() {
			return id, true, nil
		}
	}
	return "", false, nil
}

// Active are the contracts of a template that are active at the ledger end and of which the party is a stakeholder. A template of whose
// package no version is on the participant is an error, a *Rejection with codes.NotFound.
func (c *Client) Active(ctx context.Context, party string, template damlvalue.TypeName, pkgName string) ([]Created, error) {
	end, err := c.LedgerEnd(ctx)
	if err != nil {
		return nil, fmt.Errorf("read active %s: %w", template, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream wherever reading it ends
	stream, err := c.state.GetActiveContracts(ctx, &v2.GetActiveContractsRequest{
		ActiveAtOffset: end,
		EventFormat: &v2.EventFormat{Verbose: true, FiltersByParty: map[string]*v2.Filters{party: {Cumulative: []*v2.CumulativeFilter{{
			IdentifierFilter: &v2.CumulativeFilter_TemplateFilter{TemplateFilter: &v2.TemplateFilter{
				TemplateId: byName(template, pkgName), IncludeCreatedEventBlob: true,
			}},
		}}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("read active %s: %w", template, rejected(err))
	}
	var active []Created
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return active, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read active %s: %w", template, rejected(err))
		}
		entry := answer.GetActiveContract()
		if entry == nil {
			continue // on its way between two synchronizers: active nowhere
		}
		created, err := createdOf(entry.GetCreatedEvent(), &Result{SynchronizerID: entry.GetSynchronizerId()})
		if err != nil {
			return nil, fmt.Errorf("read active %s: %w", template, err)
		}
		active = append(active, created)
	}
}

// OwnUser is the id of the token's user. Without authorization there is none, and the call is refused.
func (c *Client) OwnUser(ctx context.Context) (string, error) {
	answer, err := c.users.GetUser(ctx, &admin.GetUserRequest{})
	if err != nil {
		return "", fmt.Errorf("get the token's user: %w", rejected(err))
	}
	return answer.GetUser().GetId(), nil
}

// GrantActAs lets a user act as the parties, which includes reading as them. It needs an administrator's rights.
func (c *Client) GrantActAs(ctx context.Context, userID string, parties ...string) error {
	var rights []*admin.Right
	for _, p := range parties {
		rights = append(rights, &admin.Right{Kind: &admin.Right_CanActAs_{CanActAs: &admin.Right_CanActAs{Party: p}}})
	}
	return c.grant(ctx, userID, rights)
}

// EnsureReader is CreateReader for a user that may be there: then it gets what it lacks of the rights, and keeps all others. made tells
// whether it was not there.
func (c *Client) EnsureReader(ctx context.Context, userID string, readAs ...string) (made bool, err error) {
	err = c.CreateReader(ctx, userID, readAs...)
	rejection := (*Rejection)(nil)
	if err == nil || !errors.As(err, &rejection) || rejection.Code != codes.AlreadyExists {
		return err == nil, err
	}
	return false, c.grant(ctx, userID, readRights(readAs))
}

func (c *Client) grant(ctx context.Context, userID string, rights []*admin.Right) error {
	if _, err := c.users.GrantUserRights(ctx, &admin.GrantUserRightsRequest{UserId: userID, Rights: rights}); err != nil {
		return fmt.Errorf("grant rights to user %q: %w", userID, rejected(err))
	}
	return nil
}

func readRights(parties []string) []*admin.Right {
	var rights []*admin.Right
	for _, p := range parties {
		rights = append(rights, &admin.Right{Kind: &admin.Right_CanReadAs_{CanReadAs: &admin.Right_CanReadAs{Party: p}}})
	}
	return rights
}

// KnownPackage is a package that a participant has.
type KnownPackage struct{ ID, Name, Version string }

// Packages are the packages that the participant has, vetted or not.
func (c *Client) Packages(ctx context.Context) ([]KnownPackage, error) {
	answer, err := c.packages.ListKnownPackages(ctx, &admin.ListKnownPackagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list known packages: %w", rejected(err))
	}
	var known []KnownPackage
	for _, p := range answer.GetPackageDetails() {
		known = append(known, KnownPackage{ID: p.GetPackageId(), Name: p.GetName(), Version: p.GetVersion()})
	}
	return known, nil
}

package submit_test

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/disclosured/disclosured/internal/ledgerstream/ledgersim"
	"github.com/disclosured/disclosured/internal/ledgerstream/submit"
	"github.com/disclosured/disclosured/internal/wormhole"
)

// What a first run made is what a second one finds.
func TestWhatIsThereIsFound(t *testing.T) {
	ctx, _, c := connect(t, ledgersim.Options{Synchronizers: 2})
	if _, found, err := c.FindParty(ctx, "operator"); err != nil || found {
		t.Fatalf("a party that is not there: found %v, %v", found, err)
	}
	operator := party(t, ctx, c, "operator")
	if id, found, err := c.FindParty(ctx, "operator"); err != nil || !found || id != operator {
		t.Errorf("found %v %s, want %s: %v", found, id, operator, err)
	}
	if active, err := c.Active(ctx, operator, wormhole.EmitterRegistryTemplate, wormhole.PackageName); err != nil || len(active) != 0 {
		t.Errorf("%d active contracts on an empty ledger: %v", len(active), err)
	}
	made := do(t, ctx, c, []string{operator}, submit.Create(&wormhole.EmitterRegistry{Operator: operator, NextID: 1})).Created[0]
	do(t, ctx, c, []string{operator}, submit.Create(&wormhole.ReplayRootRegistry{Operator: operator, Granted: []string{}}))
	active, err := c.Active(ctx, operator, wormhole.EmitterRegistryTemplate, wormhole.PackageName)
	if err != nil || len(active) != 1 {
		t.Fatalf("%d active contracts of the template: %v", len(active), err)
	}
	if got := active[0]; got.ContractID != made.ContractID || !slices.Equal(got.Blob, made.Blob) || got.SynchronizerID != made.SynchronizerID || got.Payload == nil {
		t.Errorf("got %+v, want %+v", got, made)
	}
	packages, err := c.Packages(ctx)
	if err != nil || !slices.Contains(packages, submit.KnownPackage(ledgersim.WormholeCore010)) {
		t.Errorf("packages %v: %v", packages, err)
	}
	for _, want := range []bool{true, false} {
		if made, err := c.EnsureReader(ctx, "reader", operator); err != nil || made != want {
			t.Errorf("reader made %v, want %v: %v", made, want, err)
		}
	}
}

func TestUnknownPackageIsARejection(t *testing.T) {
	ctx, _, c := connect(t, ledgersim.Options{Packages: []ledgersim.Package{}})
	operator := party(t, ctx, c, "operator")
	var rejection *submit.Rejection
	if _, err := c.Active(ctx, operator, wormhole.CoreStateTemplate, wormhole.PackageName); !errors.As(err, &rejection) || rejection.Code != codes.NotFound {
		t.Errorf("got %v, want NOT_FOUND", err)
	}
	if err := c.GrantActAs(ctx, "nobody", operator); !errors.As(err, &rejection) || rejection.Code != codes.NotFound {
		t.Errorf("got %v, want NOT_FOUND", err)
	}
}

package api_test

import (
	"bytes"
	"runtime"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/disclosured/disclosured/internal/api"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// Requests that are small on the wire and would be large in memory are refused before they are decoded.
func TestRequestsThatWouldExplode(t *testing.T) {
	w := basic(t)
	full := prepareVAA(vaa(1).EncodedHex())
	full.Scope = &disclosurev1.ScopeSelector{Consumer: consumer, Operator: operator, PackageName: packageName, NamespaceChoice: &disclosurev1.ScopeSelector_WithoutNamespace{WithoutNamespace: true}}
	full.CoreStateContractId = cid("core")
	largest := &disclosurev1.BatchPrepareRedeemRequest{Read: &disclosurev1.ReadOptions{}}
	for range api.MaxBatchItems {
		largest.Items = append(largest.Items, full)
	}
	for range api.MaxListedContractIDs {
		largest.Read.KnownContractIds = append(largest.Read.KnownContractIds, cid("a"))
		largest.Read.NotContractIds = append(largest.Read.NotContractIds, cid("b"))
	}
	if _, err := w.client.BatchPrepareRedeem(t.Context(), largest); err != nil {
		t.Errorf("the largest batch: %v", err)
	}

	read := protowire.AppendTag(nil, 2, protowire.BytesType)
	read = protowire.AppendBytes(read, bytes.Repeat([]byte{5<<3 | 2, 0}, 4_000_000))
	for name, c := range map[string]struct {
		request []byte
		field   string
	}{
		"empty items":             {bytes.Repeat([]byte{0x0a, 0x00}, 4_194_000), "items"},
		"items with empty scopes": {bytes.Repeat([]byte{0x0a, 0x02, 0x0a, 0x00}, 2_097_000), "items"},
		"one item of many scopes": {protowire.AppendBytes([]byte{0x0a}, bytes.Repeat([]byte{0x0a, 0x00}, 4_000_000)), "request"},
		"contract ids":            {read, "request"},
		"unknown fields":          {bytes.Repeat([]byte{15 << 3, 1}, 4_000_000), "request"},
		"items, then rubbish":     {append(bytes.Repeat([]byte{0x0a, 0x00}, 4_000_000), 0xff), "items"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := w.client.BatchPrepareRedeem(t.Context(), &disclosurev1.BatchPrepareRedeemRequest{}, rawBytes(c.request).option())
		runtime.ReadMemStats(&after)
		if info := wantReason(t, err, api.InvalidField); info.GetMetadata()["field"] != c.field {
			t.Errorf("%s: field %q, want %q", name, info.GetMetadata()["field"], c.field)
		}
		// The request's own bytes are there a few times, on both sides of the connection.
		if took := after.TotalAlloc - before.TotalAlloc; took > 100<<20 {
			t.Errorf("%s: %d MiB for a request of %d MiB", name, took>>20, len(c.request)>>20)
		}
	}

	long := &disclosurev1.GetCoreStateRequest{ContractId: string(bytes.Repeat([]byte("a"), 3<<20))}
	_, err := w.client.GetCoreState(t.Context(), long)
	if info := wantReason(t, err, api.InvalidField); info.GetMetadata()["field"] != "request" {
		t.Errorf("a request of %d bytes: field %q", proto.Size(long), info.GetMetadata()["field"])
	}
}

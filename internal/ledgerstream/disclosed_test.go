package ledgerstream

import (
	"testing"

	ledgerapi "github.com/digital-asset/dazl-client/v8/go/api/com/daml/ledger/api/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// What we answer as disclosed contracts is, byte for byte, what the Ledger API takes as such: the same field numbers and kinds.
func TestDisclosedContractIsTheLedgerAPIs(t *testing.T) {
	var same func(ours, theirs protoreflect.MessageDescriptor)
	same = func(ours, theirs protoreflect.MessageDescriptor) {
		for i := range ours.Fields().Len() {
			field := ours.Fields().Get(i)
			other := theirs.Fields().ByNumber(field.Number())
			if other == nil || other.Name() != field.Name() || other.Kind() != field.Kind() || other.Cardinality() != field.Cardinality() {
				t.Errorf("%s: field %d %s is %v in the Ledger API", ours.FullName(), field.Number(), field.Name(), other)
				continue
			}
			if field.Kind() == protoreflect.MessageKind {
				same(field.Message(), other.Message())
			}
		}
	}
	same((&disclosurev1.DisclosedContract{}).ProtoReflect().Descriptor(), (&ledgerapi.DisclosedContract{}).ProtoReflect().Descriptor())

	ours := &disclosurev1.DisclosedContract{
		TemplateId: &disclosurev1.Identifier{PackageId: "p", ModuleName: "M", EntityName: "E"},
		ContractId: "00ab", CreatedEventBlob: []byte{1, 2}, SynchronizerId: "s",
	}
	raw, err := proto.Marshal(ours)
	if err != nil {
		t.Fatal(err)
	}
	var got ledgerapi.DisclosedContract
	if err := proto.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	want := &ledgerapi.DisclosedContract{
		TemplateId: &ledgerapi.Identifier{PackageId: "p", ModuleName: "M", EntityName: "E"},
		ContractId: "00ab", CreatedEventBlob: []byte{1, 2}, SynchronizerId: "s",
	}
	if !proto.Equal(&got, want) {
		t.Errorf("read by the Ledger API's message: %v, want %v", &got, want)
	}
}

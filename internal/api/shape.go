package api

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/disclosured/disclosured/internal/wormhole"
	disclosurev1 "github.com/disclosured/disclosured/proto/disclosure/v1"
)

// What a request may look like. An empty submessage takes two bytes on the wire and a hundred and more once it is decoded: millions of
// them fit into one message. So fields are counted on the wire, and nothing is decoded that has more of them than a request can need.
const (
	// maxFields is how many fields a request may have in all, those of its submessages included: two full lists of contract ids, and
	// some.
	maxFields = 4 * MaxListedContractIDs
	// maxItemFields is how many there may be per item of a batch on top of that. An item with everything has ten.
	maxItemFields = 16
	// maxSingleBytes bounds requests that are not batches: the longest VAA and as much for the rest.
	maxSingleBytes = 2 * wormhole.MaxVAATextBytes
)

var (
	batchName  = (*disclosurev1.BatchPrepareRedeemRequest)(nil).ProtoReflect().Descriptor().FullName()
	batchItems = (*disclosurev1.BatchPrepareRedeemRequest)(nil).ProtoReflect().Descriptor().Fields().ByName("items").Number()
)

// misshapen says why a request should not be decoded, or returns nil. What is no valid message at all is left to the decoder.
func misshapen(request []byte, of protoreflect.MessageDescriptor) *Violation {
	s := shape{left: maxFields, batch: of.FullName() == batchName}
	if !s.batch && len(request) > maxSingleBytes {
		return &Violation{"request", fmt.Sprintf("must have at most %d bytes", maxSingleBytes)}
	}
	s.count(request, of)
	switch {
	case s.items > MaxBatchItems:
		return &Violation{"items", fmt.Sprintf("must be 1 to %d, got more", MaxBatchItems)}
	case s.left < 0:
		return &Violation{"request", fmt.Sprintf("must have at most %d fields in all, and %d more for each item of a batch", maxFields, maxItemFields)}
	}
	return nil
}

// shape counts a request's fields. left is how many more there may be; negative is one too many.
type shape struct {
	batch       bool
	items, left int
}

// count counts a message's fields and those of the messages in it, and reports whether it makes sense to go on. Our messages don't
// contain themselves, so it goes only as deep as they do.
func (s *shape) count(message []byte, of protoreflect.MessageDescriptor) bool {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return false
		}
		value := message[n:]
		size := protowire.ConsumeFieldValue(number, kind, value)
		if size < 0 {
			return false
		}
		if s.batch && number == batchItems && of.FullName() == batchName {
			s.items++
			s.left += maxItemFields
		}
		if s.left--; s.left < 0 || s.items > MaxBatchItems {
			return false
		}
		if field := of.Fields().ByNumber(number); field != nil && field.Message() != nil && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(value)
			if !s.count(inner, field.Message()) {
				return false
			}
		}
		message = value[size:]
	}
	return true
}

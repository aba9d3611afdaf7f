package api

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is grpc's protobuf codec with two changes.
//
// Maps are encoded in the order of their keys, so that replicas at one offset answer byte for byte the same.
//
// A request that is no valid message, or that shape.go finds too large to be decoded, becomes an empty one with a mark, which
// undecodable finds: it is bad input like any other, refused with a reason, logged and counted. grpc-go itself answers INTERNAL before any
// interceptor has seen the call.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Marshal encodes a message.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	if leaving, ok := v.(*answer); ok {
		encoded, err := leaving.encode()
		if err != nil {
			return nil, fmt.Errorf("encode an answer: %w", err)
		}
		return encoded, nil
	}
	message, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode an answer: %T is not a protobuf message", v)
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode an answer: %w", err)
	}
	return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
}

// Unmarshal decodes a message.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	fault := misshapen(whole.ReadOnlyData(), message.ProtoReflect().Descriptor())
	if fault == nil && proto.Unmarshal(whole.ReadOnlyData(), message) != nil {
		fault = &Violation{"request", "must be a protobuf message of this method, with texts in valid UTF-8"}
	}
	if fault != nil {
		proto.Reset(message)
		message.ProtoReflect().SetUnknown(marked(*fault))
	}
	return nil
}

// faultMark begins an unknown field, of the greatest number that there is, which has the violation's field and rule. Who sends such a
// field gets what it says.
var faultMark = protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.BytesType)

func marked(fault Violation) []byte {
	return protowire.AppendString(bytes.Clone(faultMark), fault.Field+"\n"+fault.Rule)
}

// undecodable refuses a request that was no message to answer.
func undecodable(req any) error {
	message, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	mark, ok := bytes.CutPrefix(message.ProtoReflect().GetUnknown(), faultMark)
	if !ok {
		return nil
	}
	text, _ := protowire.ConsumeString(mark)
	field, rule, _ := strings.Cut(text, "\n")
	return invalid(Violation{field, rule})
}

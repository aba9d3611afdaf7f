// Package rawgrpc lets a gRPC server send messages as bytes that are already encoded: recorded ones, exactly as they came, and
// damaged ones, which no message type could produce.
package rawgrpc

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"
)

// Message is an encoded message, to be sent as it is or to be filled with what was received.
type Message struct{ Bytes []byte }

// Codec is the proto codec that also takes *Message. Use it with grpc.ForceServerCodecV2 or grpc.ForceCodecV2.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ proto encoding.CodecV2 }

func (codec) Name() string { return "proto" }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*Message); ok {
		return mem.BufferSlice{mem.SliceBuffer(m.Bytes)}, nil
	}
	out, err := c.proto.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return out, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*Message); ok {
		m.Bytes = data.Materialize()
		return nil
	}
	if err := c.proto.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}

package api_test

import (
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// rawBytes is a call option that sends these bytes in place of the request.
type rawBytes []byte

func (b rawBytes) option() grpc.CallOption {
	return grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name), b})
}

type rawCodec struct {
	encoding.CodecV2
	request []byte
}

func (c rawCodec) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(c.request)}, nil
}

// rawAnswer is a call option that keeps the answer's bytes as they came.
type rawAnswer struct{ bytes []byte }

func (a *rawAnswer) option() grpc.CallOption {
	return grpc.ForceCodecV2(keepingCodec{encoding.GetCodecV2(protocodec.Name), a})
}

type keepingCodec struct {
	encoding.CodecV2
	into *rawAnswer
}

func (c keepingCodec) Unmarshal(data mem.BufferSlice, _ any) error {
	c.into.bytes = data.Materialize()
	return nil
}

func statusProto(err error) *spb.Status { return status.Convert(err).Proto() }

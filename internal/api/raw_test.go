package api_test

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
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

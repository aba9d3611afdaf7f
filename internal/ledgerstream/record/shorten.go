package record

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What of a request is kept at most. Created event blobs are bytes and belong to the story: a node of 128 digests has 10 KB.
const (
	maxText  = 8 << 10
	maxBytes = 64 << 10
)

// shorten is the request without what is too long for a recording, and a note of what was left out; the request itself where nothing was.
func shorten(m proto.Message) (short proto.Message, note string) {
	var notes []string
	short = proto.Clone(m)
	leaveOut(short.ProtoReflect(), &notes)
	if len(notes) == 0 {
		return m, ""
	}
	return short, strings.Join(notes, "; ")
}

func leaveOut(m protoreflect.Message, notes *[]string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Kind() == protoreflect.MessageKind {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					leaveOut(v.Message(), notes)
					return true
				})
			}
		case fd.IsList():
			for i := range v.List().Len() {
				if fd.Kind() == protoreflect.MessageKind {
					leaveOut(v.List().Get(i).Message(), notes)
				}
			}
		case fd.Kind() == protoreflect.MessageKind:
			leaveOut(v.Message(), notes)
		case fd.Kind() == protoreflect.StringKind && len(v.String()) > maxText:
			*notes = append(*notes, leftOut(fd, []byte(v.String())))
			m.Clear(fd)
		case fd.Kind() == protoreflect.BytesKind && (fd.Name() == "dar_file" || len(v.Bytes()) > maxBytes):
			*notes = append(*notes, leftOut(fd, v.Bytes()))
			m.Clear(fd)
		}
		return true
	})
}

func leftOut(fd protoreflect.FieldDescriptor, content []byte) string {
	return fmt.Sprintf("%s left out: %d bytes, sha256 %x", fd.Name(), len(content), sha256.Sum256(content))
}

// unknownFields are the fields of a message, and of those in it, that the stubs do not know, as "message.number".
func unknownFields(m proto.Message) []string {
	var found []string
	lookForUnknown(m.ProtoReflect(), &found)
	slices.Sort(found)
	return slices.Compact(found)
}

func lookForUnknown(m protoreflect.Message, found *[]string) {
	for rest := m.GetUnknown(); len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			break // the decoder has accepted it; there is nothing more to tell
		}
		*found = append(*found, fmt.Sprintf("%s.%d", m.Descriptor().FullName(), number))
		rest = rest[n:]
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			if fd.MapValue().Kind() == protoreflect.MessageKind {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					lookForUnknown(v.Message(), found)
					return true
				})
			}
		case fd.Kind() != protoreflect.MessageKind:
		case fd.IsList():
			for i := range v.List().Len() {
				lookForUnknown(v.List().Get(i).Message(), found)
			}
		default:
			lookForUnknown(v.Message(), found)
		}
		return true
	})
}

package transporttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// Sizes that no field of a request needs: 130 KiB of text, and 32,766 entries.
const hugeText, hugeList = 130 << 10, 32_766

// Oversized calls yield with copies of a request in each of which one field is much too large, and the name of that
// field.
func Oversized(base proto.Message, yield func(field string, req proto.Message)) {
	Sized(base, hugeText, yield)
}

// Sized is like Oversized with texts of the given length in bytes.
func Sized(base proto.Message, text int, yield func(field string, req proto.Message)) {
	own := base.ProtoReflect().Descriptor().ParentFile().Package()
	var walk func(path []protoreflect.FieldDescriptor, of protoreflect.MessageDescriptor)
	walk = func(path []protoreflect.FieldDescriptor, of protoreflect.MessageDescriptor) {
		for i := range of.Fields().Len() {
			field := of.Fields().Get(i)
			nested := field.Message() != nil && !field.IsMap()
			if nested && field.Message().ParentFile().Package() == own && len(path) < 4 {
				walk(append(path, field), field.Message())
			}
			if nested && !field.IsList() {
				continue
			}
			req := proto.Clone(base)
			m := req.ProtoReflect()
			for _, parent := range path {
				switch {
				case !parent.IsList():
					m = m.Mutable(parent).Message()
				case m.Get(parent).List().Len() == 0:
					m = m.Mutable(parent).List().AppendMutable().Message()
				default:
					m = m.Get(parent).List().Get(0).Message()
				}
			}
			switch {
			case nested:
				for range hugeList {
					m.Mutable(field).List().AppendMutable()
				}
			case field.IsMap():
				for n := range hugeList / 4 {
					m.Mutable(field).Map().Set(protoreflect.ValueOfString(fmt.Sprintf("k%d", n)).MapKey(),
						protoreflect.ValueOfString("x"))
				}
			case field.IsList() && field.Kind() == protoreflect.StringKind:
				for range hugeList {
					m.Mutable(field).List().Append(protoreflect.ValueOfString("x"))
				}
			case field.Kind() == protoreflect.StringKind:
				m.Set(field, protoreflect.ValueOfString(strings.Repeat("x", text)))
			case field.Kind() == protoreflect.BytesKind:
				m.Set(field, protoreflect.ValueOfBytes(make([]byte, text)))
			default:
				continue
			}
			yield(string(field.Name()), req)
		}
	}
	walk(nil, base.ProtoReflect().Descriptor())
}

// Invoke calls a method with one request, and returns the error of the call.
func Invoke(ctx context.Context, conn *grpc.ClientConn, method protoreflect.MethodDescriptor, req proto.Message) error {
	name := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	answer := dynamicpb.NewMessage(method.Output())
	if !method.IsStreamingServer() && !method.IsStreamingClient() {
		return conn.Invoke(ctx, name, req, answer)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(answer)
}

// Package nstancev1 has the messages and services of the gRPC API. docs/reference/rpcs.md describes them.
package nstancev1

import (
	_ "embed"
	"encoding/json"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// OptionsOf returns the options of a call of the OperatorService.
func OptionsOf(method protoreflect.MethodDescriptor) *CallOptions {
	return proto.GetExtension(method.Options(), E_Call).(*CallOptions)
}

// OperatorCalls returns the descriptors of the calls of the OperatorService.
func OperatorCalls() protoreflect.MethodDescriptors {
	return File_nstance_v1_operator_proto.Services().ByName("OperatorService").Methods()
}

//go:embed comments.json
var comments []byte

var commentsByName = sync.OnceValue(func() (byName map[protoreflect.FullName]string) {
	if err := json.Unmarshal(comments, &byName); err != nil {
		panic("nstancev1: comments.json: " + err.Error())
	}
	return byName
})

// Comment returns the comment of a call or of a message's field, without line breaks.
func Comment(of protoreflect.Descriptor) string { return commentsByName()[of.FullName()] }

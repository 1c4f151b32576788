package fleet

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// Message writes a message of the protocol as JSON. The members have the names and the order of the message's fields. A
// field with its default is written too, except a message or an optional field that is not set. [JSONName] says which
// names differ. A number of 64 bits is a number, and not a text as in the usual JSON of protobuf.
type Message[M proto.Message] struct {
	Of M `json:"-"`
}

// MessageOf returns a message that is written as JSON.
func MessageOf[M proto.Message](m M) Message[M] { return Message[M]{m} }

// Descriptor describes the message.
func (m Message[M]) Descriptor() protoreflect.MessageDescriptor {
	return m.Of.ProtoReflect().Descriptor()
}

// MarshalJSON returns the message as JSON.
func (m Message[M]) MarshalJSON() ([]byte, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m.Of)
	if err != nil {
		return nil, err
	}
	return rewrite(text, m.Descriptor())
}

// JSONName returns the name of a field in the JSON of a [Message]. A text that holds JSON, such as merged_json, is
// written as that JSON, and its name loses the suffix _json. The name is empty for fields that are left out: the shard,
// because its name stands beside the message, and the token of the next page, because the fleet reads all pages.
func JSONName(field protoreflect.FieldDescriptor) string {
	if field.Name() == "shard" || field.Name() == "next_page_token" {
		return ""
	}
	return strings.TrimSuffix(string(field.Name()), "_json")
}

// IsMessage reports whether a field holds messages of Nstance, and no map, time or duration.
func IsMessage(field protoreflect.FieldDescriptor) bool {
	return field.Message() != nil && !field.IsMap() && field.Message().ParentFile().Package() == "nstance.v1"
}

// rewrite returns the JSON of a message in the form that [Message] describes.
func rewrite(text []byte, message protoreflect.MessageDescriptor) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	var out [][]byte
	fields := message.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		value, ok := members[string(field.Name())]
		name := JSONName(field)
		if !ok || name == "" {
			continue
		}
		var err error
		switch {
		case name != string(field.Name()):
			var quoted string
			if err = json.Unmarshal(value, &quoted); json.Valid([]byte(cmp.Or(quoted, "null"))) {
				value = json.RawMessage(cmp.Or(quoted, "null"))
			}
		case field.Kind() == protoreflect.Uint64Kind || field.Kind() == protoreflect.Int64Kind:
			value = bytes.Trim(value, `"`)
		case !IsMessage(field):
		case field.IsList():
			var elements []json.RawMessage
			err = json.Unmarshal(value, &elements)
			texts := make([][]byte, len(elements))
			for n := 0; n < len(elements) && err == nil; n++ {
				texts[n], err = rewrite(elements[n], field.Message())
			}
			value = slices.Concat([]byte{'['}, bytes.Join(texts, []byte{','}), []byte{']'})
		default:
			value, err = rewrite(value, field.Message())
		}
		if err != nil {
			return nil, err
		}
		out = append(out, slices.Concat([]byte(`"`+name+`":`), value))
	}
	return slices.Concat([]byte{'{'}, bytes.Join(out, []byte{','}), []byte{'}'}), nil
}

// object returns one JSON object with the members of several structs and messages. It leaves out messages that are nil.
func object(parts ...any) ([]byte, error) {
	var members [][]byte
	for _, part := range parts {
		var text []byte
		var err error
		if m, ok := part.(proto.Message); !ok && part != nil {
			text, err = json.Marshal(part)
		} else if ok && m.ProtoReflect().IsValid() {
			text, err = MessageOf(m).MarshalJSON()
		}
		if err != nil {
			return nil, err
		}
		if len(text) > len("{}") {
			members = append(members, text[1:len(text)-1])
		}
	}
	return slices.Concat([]byte{'{'}, bytes.Join(members, []byte{','}), []byte{'}'}), nil
}

// WaitText says what a group waits for. It is empty if nothing is awaited. A leader of an earlier version says only why
// the group is not at its size, and why its rollout waits.
func WaitText(of interface {
	GetWait() *nstancev1.Wait
	GetBlockedReason() string
	GetRolloutWaits() string
}) string {
	if of.GetWait() != nil {
		return of.GetWait().GetText()
	}
	return strings.Trim(of.GetBlockedReason()+"; "+of.GetRolloutWaits(), "; ")
}

// NumberText says how a number by which a group is scaled compares with its target.
func NumberText(m *nstancev1.ScalingMetric) string {
	unit := ""
	if m.GetName() == "cpu" || m.GetName() == "memory" {
		unit = " %"
	}
	target := fmt.Sprintf("target %s%s", decimal(m.GetTarget()), unit)
	if m.Value == nil {
		return fmt.Sprintf("unknown, %s: %s", target, m.GetProblem())
	}
	return fmt.Sprintf("%s%s, %s", decimal(m.GetValue()), unit, target)
}

// decimal returns a number with up to two decimals.
func decimal(n float64) string { return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64) }

// LeaseText says how long a leader may act without another renewal of its lock.
func LeaseText(s *nstancev1.GetShardStatusResponse) string {
	if s.GetLeaseLeft() == nil {
		return "no lock"
	}
	return s.GetLeaseLeft().AsDuration().Round(time.Millisecond).String()
}

// Time returns the time of a message. It is zero if the message has none.
func Time(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Number is the type of a number of things.
type Number interface {
	~int | ~uint32 | ~uint64
}

// Count returns a number with a noun, such as "1 instance" or "2 instances".
func Count[N Number](n N, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

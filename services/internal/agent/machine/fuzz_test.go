package machine

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/godbus/dbus/v5"
)

// FuzzParseShutdown parses arbitrary signals, because any client on the machine's bus can send a signal.
func FuzzParseShutdown(f *testing.F) {
	encode := func(member, signature string, body ...any) []byte {
		m := &dbus.Message{Type: dbus.TypeSignal, Headers: map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/login1")),
			dbus.FieldInterface: dbus.MakeVariant(login1Manager),
			dbus.FieldMember:    dbus.MakeVariant(member),
		}, Body: body}
		if len(body) > 0 {
			m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.ParseSignatureMust(signature))
		}
		var out bytes.Buffer
		if err := m.EncodeTo(&out, binary.LittleEndian); err != nil {
			f.Fatal(err)
		}
		return out.Bytes()
	}
	for _, seed := range [][]byte{
		encode("PrepareForShutdown", "b", true), encode("PrepareForShutdown", "s", "yes"),
		encode("PrepareForShutdown", ""),
		encode("PrepareForShutdownWithMetadata", "ba{sv}", true, map[string]dbus.Variant{
			"type": dbus.MakeVariant("reboot")}),
		encode("PrepareForShutdownWithMetadata", "ba{sv}", true, map[string]dbus.Variant{
			"type": dbus.MakeVariant(uint32(1))}),
		encode("PrepareForShutdownWithMetadata", "b", true),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		m, err := dbus.DecodeMessage(bytes.NewReader(wire))
		if err != nil {
			return
		}
		text := func(field dbus.HeaderField) string {
			value, _ := m.Headers[field].Value().(string)
			return value
		}
		signal := &dbus.Signal{Name: text(dbus.FieldInterface) + "." + text(dbus.FieldMember), Body: m.Body}
		shutdown, ok := parseShutdown(signal)
		if !ok && shutdown.Action != "" {
			t.Errorf("%v is not a signal, but the action is %q", signal, shutdown.Action)
		}
		if ok {
			if active, is := m.Body[0].(bool); !is || active != shutdown.Active {
				t.Errorf("%v is read as %v", signal, shutdown)
			}
		}
	})
}

package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nstance-kit/nstance/services/contract/record"
	"github.com/nstance-kit/nstance/services/internal/server/lead/election"
)

const (
	// maxFrame is the maximum size of a frame in bytes. It suffices for a lock in which every text has its maximum
	// length and every byte is escaped.
	maxFrame = 64 << 10
	// maxName is the maximum length in bytes of a server's ID, of its incarnation, and of the token of the lock. The
	// same limit applies in the lock.
	maxName = 512
	// maxLength is the maximum duration of a promise that a heartbeat may ask for.
	maxLength = time.Minute
)

// hello is the first message in either direction. The sender's certificate also contains its ID.
type hello struct{ From election.Peer }

// frame is one message as JSON. Exactly one field is set.
type frame struct {
	Hello     *hello             `json:"hello,omitempty"`
	Heartbeat *heartbeat         `json:"heartbeat,omitempty"`
	Promise   *election.Promise  `json:"promise,omitempty"`
	Handover  *election.Handover `json:"handover,omitempty"`
	TookOver  *election.TookOver `json:"took_over,omitempty"`
}

// heartbeat is an election.Heartbeat as JSON. It contains the lock in the format of the store, so that the receiver can
// decode it like a lock that it read from the store.
type heartbeat struct {
	election.Heartbeat
	Lock json.RawMessage
}

// codec is the gRPC codec of the election port: it encodes and decodes a hello or an election.Message.
type codec struct{}

func (codec) Name() string { return "nstance-peer" }

func (codec) Marshal(message any) ([]byte, error) {
	var f frame
	switch m := message.(type) {
	case hello:
		f.Hello = &m
	case election.Heartbeat:
		lock, err := record.EncodeLock(m.Lock)
		if err != nil {
			return nil, err
		}
		f.Heartbeat = &heartbeat{m, lock}
	case election.Promise:
		f.Promise = &m
	case election.Handover:
		f.Handover = &m
	case election.TookOver:
		f.TookOver = &m
	default:
		return nil, fmt.Errorf("%T is no message", message)
	}
	return json.Marshal(f)
}

// Unmarshal stores the message in *into. into must be an *any.
func (codec) Unmarshal(data []byte, into any) (err error) {
	var f frame
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields() // a message of a newer version may mean something else without them
	if err := decoder.Decode(&f); err != nil {
		return fmt.Errorf("decode message of a server: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("decode message of a server: more than one JSON value")
	}
	var message any
	switch {
	case f.Hello != nil:
		message, err = *f.Hello, validate(f.Hello.From)
	case f.Heartbeat != nil:
		m := f.Heartbeat.Heartbeat
		m.Lock, err = record.DecodeLock(f.Heartbeat.Lock)
		switch {
		case err != nil:
		case m.Length <= 0 || m.Length > maxLength:
			err = fmt.Errorf("a promise of %s", m.Length)
		case len(m.Token) > maxName:
			err = fmt.Errorf("the token of the lock has %d bytes, want at most %d", len(m.Token), maxName)
		default:
			err = validate(m.Leader, m.Standby)
		}
		message = m
	case f.Promise != nil:
		message, err = *f.Promise, validate(f.Promise.Leader, f.Promise.Standby)
	case f.Handover != nil:
		message, err = *f.Handover, validate(f.Handover.Leader, f.Handover.Standby)
	case f.TookOver != nil:
		message, err = *f.TookOver, validate(f.TookOver.Leader, f.TookOver.Standby)
	default:
		err = errors.New("it has no known field")
	}
	if err != nil {
		return fmt.Errorf("decode message of a server: %w", err)
	}
	*into.(*any) = message
	return nil
}

// validate checks that the names of servers fit into a lock.
func validate(servers ...election.Peer) error {
	for _, server := range servers {
		for _, part := range []string{server.ID, server.Incarnation} {
			if part == "" || len(part) > maxName {
				return fmt.Errorf("the name of a server has a part of %d bytes, want 1 to %d", len(part), maxName)
			}
		}
	}
	return nil
}

package shards

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
)

// FuzzMirror checks the mirror's consistency for any order of updates. An instance reported as deleted stays deleted,
// is remembered for keepDeleted, and has no drain. The fuzzed parameter script has four bytes for each update. The
// parameter message is an encoded instance.
func FuzzMirror(f *testing.F) {
	whole, err := proto.Marshal(&nstancev1.InstanceStatus{InstanceId: "i1", Group: "g", State: "registered", Zone: "z",
		Region: "r"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{0, 1, 0, 0, 4, 1, 0, 0, 2, 1, 0, 0, 0, 1, 2, 0, 6, 0, 0, 0}, whole)
	f.Add([]byte{0, 1, 1, 0, 3, 1, 0, 0, 7, 40, 0, 0, 3, 1, 0, 0, 0, 1, 0, 0, 7, 255, 0, 0, 6, 0, 0, 0}, []byte{})
	f.Add([]byte{1, 0, 0, 0, 5, 7, 0, 0, 8, 3, 0, 0, 1, 255, 0, 1}, []byte("\x0a\x00"))
	f.Fuzz(func(t *testing.T, script, message []byte) {
		now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
		m := newMirror("a", func() time.Time { return now })
		odd := &nstancev1.InstanceStatus{}
		if proto.Unmarshal(message, odd) != nil {
			odd = &nstancev1.InstanceStatus{}
		}
		states := []string{"registered", reserved, deleted, "", "asleep"}
		instance := func(b, c byte) *nstancev1.InstanceStatus {
			if b == 255 {
				return odd
			}
			return &nstancev1.InstanceStatus{InstanceId: []string{"", "i1", "i2", "i3"}[b%4],
				Group: []string{"", "g", "h"}[b/4%3], State: states[int(c)%len(states)]}
		}
		dead := map[string]time.Time{} // the instances that a leader reported as deleted
		for ; len(script) >= 4; script = script[4:] {
			op, b, c, d := script[0], script[1], script[2], script[3]
			i, since := instance(b, c), latest
			if d%2 == 1 {
				since = m.mark()
			}
			switch op % 9 {
			case 0:
				m.setInstance(i, since)
				if have, ok := m.Instance(i.GetInstanceId()); ok && i.GetState() == deleted &&
					have.GetState() == deleted && !m.instances[i.GetInstanceId()].guessed {
					if _, known := dead[i.GetInstanceId()]; !known {
						dead[i.GetInstanceId()] = now
					}
				}
			case 1:
				var all []*nstancev1.InstanceStatus
				for n := range b % 4 {
					if one := instance(b+n, c); one.GetState() != deleted {
						all = append(all, one)
					}
				}
				m.applyList(all, since)
			case 2, 4:
				m.setDrain(Drain{Instance: i, Announced: now.Add(time.Duration(c) * time.Second),
					Reason: fmt.Sprint(d)})
			case 3:
				m.markUnknown(i.GetInstanceId(), since)
			case 5:
				m.replaceDrains(map[string]Drain{i.GetInstanceId(): {Instance: i}})
			case 6:
				m.applyList(nil, since)
			case 7:
				now = now.Add(time.Duration(b) * 10 * time.Second)
			case 8:
				g := &nstancev1.GroupStatus{Group: i.GetGroup(), Size: uint32(c)}
				m.setGroup(g, since)
				m.markDeleting(i.GetGroup(), since)
				if d%3 == 0 {
					m.removeGroup(i.GetGroup())
				}
			}
			for id, at := range dead {
				if have, ok := m.Instance(id); ok && have.GetState() != deleted && now.Sub(at) <= keepDeleted {
					t.Fatalf("deleted instance %s is live again: %v", id, have)
				}
			}
			for id, e := range m.instances {
				noted := !e.deletedAt.IsZero()
				if id == "" || noted != (e.message.GetState() == deleted) || e.number > m.number ||
					e.guessed && !noted {
					t.Fatalf("%q: gone %t, %v, change %d of %d", id, noted, e.message, e.number, m.number)
				}
				if _, drains := m.drains[id]; drains && noted {
					t.Fatalf("deleted instance %s still has a drain", id)
				}
			}
			for name, n := range m.counts() {
				if n < 0 || n > len(m.instances) {
					t.Fatalf("%d instances in %q", n, name)
				}
			}
			m.Instances("")
			m.Drains()
			m.Groups()
		}
	})
}

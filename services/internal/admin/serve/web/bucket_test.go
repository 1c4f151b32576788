package web_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/admin/serve/web"
	"github.com/nstance-kit/nstance/services/internal/proof/fleettest"
)

// bucket is a web.Bucket with fixed answers.
type bucket struct {
	lock       web.Lock
	comparison web.Comparison
	err        error
}

func (b *bucket) Lock(context.Context, string) web.Lock { return b.lock }

func (b *bucket) Compare(context.Context, string) (web.Comparison, error) { return b.comparison, b.err }

// TestLeaderlessShard checks that the page of a shard without a leader shows the lock in the bucket and what the shard
// waits for. The page of a shard with a leader shows no lock.
func TestLeaderlessShard(t *testing.T) {
	s := newSiteWith(t, &bucket{lock: web.Lock{Holder: "server-9", Heir: "server-8", Term: 41, RenewedAt: fleettest.Now,
		Lease: 10 * time.Second, Waits: "the lock is <stale>", Next: "start a server"}}, "")
	s.a.Do(func() { s.a.Before = func(string) error { return fleettest.NotLeader("a", "", "") } })
	all := s.text(t, "/ui/", 200)
	if strings.Count(all, "Lock of server-9 in term 41") != 1 || !strings.Contains(all, "the lock is &lt;stale&gt;") {
		t.Error(all)
	}
	text := s.text(t, "/ui/shards/a", 200)
	for _, want := range []string{"<dt>Holder</dt><dd><code>server-9</code>", "<dt>Term</dt><dd>41</dd>",
		"<code>server-8</code>", "now</time>, for 10 s", "the lock is &lt;stale&gt;", "start a server"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if text := s.text(t, "/ui/shards/b", 200); strings.Contains(text, "server-9") {
		t.Error(text)
	}
}

// TestComparedConfiguration checks that the page shows what the newest configuration in the bucket would change.
func TestComparedConfiguration(t *testing.T) {
	b := &bucket{comparison: web.Comparison{Rolling: []string{"default/workers"},
		Effects: []string{"Instances are replaced."}, More: 7,
		Diff: []web.DiffLine{{Class: "position", Text: "@@ -1 +1 @@"},
			{Class: "removed", Text: `-"<old>"`}, {Class: "added", Text: `+"new"`}}}}
	s := newSiteWith(t, b, "")
	text := s.text(t, "/ui/config", 200)
	for _, want := range []string{"<dt>Groups that would roll</dt><dd>default/workers</dd>", "Instances are replaced.",
		`<span class="removed">-&#34;&lt;old&gt;&#34;</span>`, `<span class="added">&#43;&#34;new&#34;</span>`,
		"and 7 more lines"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	b.comparison = web.Comparison{Same: true}
	if text := s.text(t, "/ui/config", 200); !strings.Contains(text, "no newer configuration") {
		t.Error(text)
	}
	b.err = errors.New("no route")
	if text := s.text(t, "/ui/config", 200); !strings.Contains(text, "cannot be compared: no route") ||
		!strings.Contains(text, "<code>e1</code>") {
		t.Error(text)
	}
}

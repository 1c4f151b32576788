package agentapi_test

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/store/objstore/mem"
)

// written is the hash of a file's content, and the time of the file's last write.
type written struct {
	Content  [sha256.Size]byte
	Modified time.Time
}

// files returns all files of the server's cache.
func (l *testLeader) files(t testing.TB) map[string]written {
	t.Helper()
	out := map[string]written{}
	if err := filepath.WalkDir(l.disk, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		out[path] = written{sha256.Sum256(content), info.ModTime()}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// Reports that change nothing about an instance are kept only in memory. They cause no write to the disk or the bucket.
func TestUnchangedReportsWriteNothing(t *testing.T) {
	w := newTestLeader(t)
	c := w.agent(t)
	r, _, _, _ := c.complete()
	unchanged := func(m *nstancev1.ReportHealthRequest) {
		m.RuntimeHash, m.Unchanged, m.AgentVersion = "r1", true, "v1"
		m.Metrics = &nstancev1.Metrics{Cpu: float64(m.GetSequence()) / 100, MemoryUsedBytes: m.GetSequence(),
			MemoryTotalBytes: 1 << 30}
	}
	r.send(unchanged)

	var requests atomic.Int64
	w.Fault(func(mem.Request) mem.Fault { requests.Add(1); return mem.Fault{} })
	before := w.files(t)
	if len(before) == 0 {
		t.Fatal("there is no cache")
	}
	for range 50 {
		w.Clock.Advance(time.Minute)
		r.send(unchanged)
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d requests to the bucket", n)
	}
	if diff := cmp.Diff(before, w.files(t)); diff != "" {
		t.Errorf("the disk was written to:\n%s", diff)
	}
	// Check that this test detects a write.
	if err := w.cache.DeleteKeys(t.Context(), c.id); err != nil {
		t.Fatal(err)
	}
	if cmp.Equal(before, w.files(t)) {
		t.Error("a write is not noticed")
	}
}

package infra_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nstance-kit/nstance/services/internal/server/infra"
)

func TestClassOf(t *testing.T) {
	cause := errors.New("boom")
	for _, test := range []struct {
		name string
		err  error
		want infra.Class
	}{
		{"nil", nil, ""},
		{"none", cause, infra.Indeterminate},
		{"class", infra.Errorf(infra.Capacity, "create", "%w", cause), infra.Capacity},
		{"wrapped", fmt.Errorf("group a: %w", infra.Wrap(infra.Throttled, "create", cause)), infra.Throttled},
		{"bare class", fmt.Errorf("script: %w", infra.Denied), infra.Denied},
		{"cancelled", infra.Wrap(infra.Invalid, "create", fmt.Errorf("send: %w", context.Canceled)),
			infra.Indeterminate},
		{"deadline", infra.Wrap(infra.Invalid, "create", context.DeadlineExceeded), infra.Indeterminate},
		{"bare context", context.Canceled, infra.Indeterminate},
		{"outermost", infra.Wrap(infra.Capacity, "create", infra.Wrap(infra.NotFound, "subnet", cause)),
			infra.Capacity},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := infra.ClassOf(test.err); got != test.want {
				t.Errorf("ClassOf(%v) = %q, want %q", test.err, got, test.want)
			}
		})
	}
	if infra.Wrap(infra.Invalid, "create", nil) != nil {
		t.Error("Wrap(nil) is an error")
	}
}

func TestErrorIs(t *testing.T) {
	cause := errors.New("boom")
	err := fmt.Errorf("reconcile: %w", infra.Wrap(infra.NotFound, "get x", cause))
	if !errors.Is(err, infra.NotFound) || errors.Is(err, infra.Conflict) || !errors.Is(err, cause) {
		t.Errorf("%v: wrong answers from errors.Is", err)
	}
	if want := "reconcile: get x: not found: boom"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
}

func TestRequestIsRedacted(t *testing.T) {
	req := infra.CreateRequest{InstanceType: "a", Args: map[string]any{"k": "secret-arg"},
		Userdata: []byte("secret-nonce")}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("create", "request", req, "pointer", &req)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("create", "request", req, "pointer", &req)
	text := fmt.Sprintf("%s %v %+v %#v %v %x", req, req, req, req, &req, req) + log.String()
	if strings.Contains(text, "secret") || strings.Contains(text, fmt.Sprintf("%x", "secret")) {
		t.Errorf("userdata or args shown: %s", text)
	}
	if raw, err := json.Marshal(req); err == nil || !strings.Contains(err.Error(), "nonce") {
		t.Errorf("marshalled: %s, %v", raw, err)
	}
}

func TestRequestDigest(t *testing.T) {
	base := infra.CreateRequest{InstanceType: "a", Args: map[string]any{"x": 1, "y": []any{"z"}}, Userdata: []byte("u")}
	digest := func(r infra.CreateRequest) string {
		t.Helper()
		d, err := r.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	same := base
	same.Args = map[string]any{"y": []any{"z"}, "x": 1}
	if digest(base) != digest(same) {
		t.Error("equal requests have different digests")
	}
	for name, change := range map[string]func(*infra.CreateRequest){
		"userdata": func(r *infra.CreateRequest) { r.Userdata = []byte("v") },
		"type":     func(r *infra.CreateRequest) { r.InstanceType = "b" },
		"subnet":   func(r *infra.CreateRequest) { r.Subnet = "b" },
		"args":     func(r *infra.CreateRequest) { r.Args = map[string]any{"x": 2} },
		"term":     func(r *infra.CreateRequest) { r.Tags.Term++ },
		"shard":    func(r *infra.CreateRequest) { r.Tags.Shard = "b" },
		"created":  func(r *infra.CreateRequest) { r.Tags.CreatedAt = time.Unix(1, 0) },
	} {
		other := base
		change(&other)
		if digest(base) == digest(other) {
			t.Errorf("%s: digest does not tell", name)
		}
	}
	bad := base
	bad.Args = map[string]any{"x": func() {}}
	if _, err := bad.Digest(); err == nil {
		t.Error("digest of what is no JSON")
	}
}

func TestErrorTextIsOneLine(t *testing.T) {
	for text, want := range map[string]string{"a\nb\r\x1b[0m": "a b  [0m", "a\u2028b\u2029": "a b ",
		"caf\xe9":   "caf\uFFFD",
		"aaaaaaaaé": "aaaaaaaaé", "aaaaaaaaaé": "aaaaaaaaa…", "": ""} {
		if got := infra.OneLine(text, 10); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestClassOfTheCauseIsIgnored checks that an error has only its own class, and that its cause can still be found.
func TestClassOfTheCauseIsIgnored(t *testing.T) {
	_, missing := os.Open(filepath.Join(t.TempDir(), "missing"))
	inner := infra.Wrap(infra.NotFound, "get vm-1", missing)
	for name, err := range map[string]error{
		"Wrap":   infra.Wrap(infra.Indeterminate, "delete vm-1", inner),
		"Errorf": infra.Errorf(infra.Indeterminate, "delete vm-1", "read it again: %w", inner),
	} {
		var path *fs.PathError
		if errors.Is(err, infra.NotFound) || !errors.Is(err, infra.Indeterminate) ||
			infra.ClassOf(err) != infra.Indeterminate || !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &path) {
			t.Errorf("%s: %v has the class of its cause, or lost the cause", name, err)
		}
	}
}

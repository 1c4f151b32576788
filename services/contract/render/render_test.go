package render_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/render"
)

func sample() render.Data {
	d := render.Sample()
	d.Vars["role"] = "worker"
	d.Vars["quote"] = `it's "here"`
	d.Image["debian_13"] = "ami-1"
	return d
}

func TestText(t *testing.T) {
	d := sample()
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"plain }} text", "plain }} text"},
		{"{{ .Instance.ID }}", d.Instance.ID},
		{"{{ .Instance.Kind }} {{ .Instance.Arch }} {{ .Instance.Type }} {{ .Instance.Group }} {{ .Instance.Tenant }}",
			"knd arm64 sample.medium sample default"},
		{"{{ .Instance.Hostname }} {{ .Instance.FQDN }} {{ .Instance.IP4 }} {{ .Instance.IP6 }}",
			"ip-192-0-2-10 ip-192-0-2-10.example.internal 192.0.2.10 2001:db8::10"},
		{"{{ .Cluster.ID }}{{ .Cluster.CACert }}", "sample" + d.Cluster.CACert},
		{"{{ .Server.Shard }} {{ .Server.RegistrationAddr }} {{ .Server.AgentAddr }} {{ .Server.OperatorAddr }}",
			"sample 192.0.2.1:8992 192.0.2.1:8994 192.0.2.1:8993"},
		{"{{ .Provider.Kind }} {{ .Provider.Region }} {{ .Provider.Zone }}", "sample sample sample-a"},
		{"{{ .Vars.role }} {{ $.Vars.role }} {{ .Image.debian_13 }}", "worker worker ami-1"},
		{`{{ index .Vars "absent" }}`, ""},
		{`{{ if eq .Vars.role "worker" }}yes{{ else }}no{{ end }}`, "yes"},
		{`{{ with .Instance }}{{ .ID }} {{ $.Vars.role }}{{ end }}`, d.Instance.ID + " worker"},
		{`{{ range $k, $v := .Image }}{{ $k }}={{ $v }};{{ end }}`, "debian_13=ami-1;"},
		{`{{ range $.Image }}{{ . }}{{ end }}`, "ami-1"},
		{`{{ printf "%s-%03d %q" .Vars.role 7 "x" }}`, `worker-007 "x"`},
		{`{{ print "a" 1 2 "b" }}{{ println "c" }}`, "a1 2bc\n"},
		{`{{ base64 .Vars.role }}`, "d29ya2Vy"},
		{`{{ indent 2 "a\n\nb\n" }}`, "  a\n\n  b\n"},
		{`{{ .Vars.quote | quote }}`, `'it'\''s "here"'`},
		{`{{ json .Vars.quote }}`, `"it's \"here\""`},
		{`{{ json .Vars }}`, `{"quote":"it's \"here\"","role":"worker"}`},
		{`{{ html "<a>" }}{{ urlquery "a b" }}{{ js "'" }}`, `&lt;a&gt;a+b\'`},
	} {
		got, err := renderText("t", tt.text, d)
		if err != nil || got != tt.want {
			t.Errorf("%q = %q, %v, want %q", tt.text, got, err, tt.want)
		}
	}
}

func TestTextRefuses(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"{{", "unclosed action"},
		{"{{ .Instance.Foo }}", "line 1:12: there is no .Instance.Foo; .Instance has ID, Kind, Arch, "},
		{"a\n{{ .instance }}", "line 2:3: there is no .instance; there are .Instance, .Cluster"},
		{"{{ $.Nope }}", "there is no .Nope"},
		{"{{ .Instance.ID.Version }}", ".Instance.ID is text"},
		{"{{ .Nonce }}", "there is no .Nonce"},
		{"{{ . }}", ". is not text; there are .Instance"},
		{"{{ $ }}", ". is not text; there are .Instance"},
		{"{{ .Instance }}", ".Instance is not text; .Instance has ID"},
		{"{{ $.Vars }}", ".Vars is not text; name one of them, as .Vars.name"},
		{`{{ if eq .Instance.IP6 "" }}{{ .Instance.Ip6 }}{{ end }}`, "there is no .Instance.Ip6"},
		{`{{ with .Vars }}{{ $.Insance.ID }}{{ end }}`, "there is no .Insance"},
		{`{{ with .Instance }}{{ .Foo }}{{ end }}`, "can't evaluate field Foo"},
		{"{{ .Vars.absent }}", `no entry for key "absent"`},
		{"{{ nosuchfunc }}", `function "nosuchfunc" not defined`},
		{`{{ define "x" }}y{{ end }}`, "not available"},
		{`{{ block "x" . }}y{{ end }}`, "not available"},
		{`{{ template "text" . }}`, "not available"},
		{`{{ range 1000000000000 }}{{ end }}`, "range is available over"},
		{`{{ $n := 1000000000000 }}{{ range $n }}{{ end }}`, "range is available over"},
		{`{{ with 1000000000000 }}{{ range . }}{{ end }}{{ end }}`, "range is available over"},
		{`{{ range .Instance }}{{ end }}`, "range is available over"},
		{`{{ range .Vars }}{{ range $.Vars }}{{ end }}{{ end }}`, "a range inside another"},
		{`{{ range .Vars }}` + strings.Repeat("{{ . }}", 1001) + `{{ end }}`, "more than 1000 parts"},
		{`{{ printf "%1000000s" "a" }}`, "width or precision"},
		{`{{ printf "%.99999f" 1.5 }}`, "width or precision"},
		{`{{ printf "%*d" 1000000 1 }}`, "width or precision"},
		{`{{ print .Vars }}`, "cannot be printed"},
		{`{{ indent 1000000000 "a" }}`, "0 to 100"},
		{strings.Repeat("x", render.MaxSource+1), "too large"},
		{`{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat("{{ $x = print $x $x }}", 40), "too large"},
		{`{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat("{{ $x = html $x $x }}", 40), "too large"},
		{`{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat("{{ $x = json $x }}", 40), "too large"},
		{`{{ $x := "aaaaaaaaaaaaaaaa" }}` + strings.Repeat(`{{ $x = printf "%[1]s%[1]s" $x }}`, 40), "too large"},
		{`{{ $x := printf "%999d" 1 }}{{ $x = print $x $x $x $x $x $x $x $x $x $x }}` + strings.Repeat("{{ $x }}", 200),
			"too large"},
	} {
		start := time.Now()
		got, err := renderText("name", tt.text, sample())
		if err == nil {
			t.Errorf("%.80q = %.80q, want an error", tt.text, got)
		} else if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "name: ") {
			t.Errorf("%.80q: error %q, want %q", tt.text, err, tt.want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%.80q took %s", tt.text, took)
		}
	}
	d := sample()
	for i := range render.MaxVars {
		d.Vars[fmt.Sprint("v", i)] = "x"
	}
	if _, err := renderText("t", "{{ .Vars.v1 }}", d); !errors.Is(err, render.ErrTooLarge) {
		t.Errorf("with too many vars: %v", err)
	}
	d = sample()
	d.Image = map[string]string{}
	for i := range render.MaxVars + 1 {
		d.Image[fmt.Sprint("i", i)] = "x"
	}
	if _, err := renderText("t", "{{ .Image.i1 }}", d); !errors.Is(err, render.ErrTooLarge) {
		t.Errorf("with too many images: %v", err)
	}
	delete(d.Image, "i0")
	if got, err := renderText("t", "{{ .Image.i1 }}", d); err != nil || got != "x" {
		t.Errorf("with the most images: %q, %v", got, err)
	}
}

func TestValidateEnvName(t *testing.T) {
	for name, ok := range map[string]bool{"a": true, "z": true, "A": true, "Z": true, "_": true, "a0": true, "a9": true,
		strings.Repeat("a", 256): true, strings.Repeat("a", 257): false, "": false, "0": false, "9a": false,
		"a-b": false, "a=b": false, "`": false, "{": false, "@": false, "[": false, "é": false, "a:": false} {
		if err := render.ValidateEnvName(name); (err == nil) != ok {
			t.Errorf("%q: %v, want valid %t", name, err, ok)
		}
	}
}

func TestVars(t *testing.T) {
	tmpl, err := render.Compile("t",
		`{{ .Vars.b }}{{ if .Vars.a }}{{ range .Image }}{{ $.Vars.c }}{{ end }}{{ end }}{{ .Vars.b }}{{ index .Vars "d" }}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b", "a", "c"}, tmpl.Vars()); diff != "" {
		t.Error(diff)
	}
}

// TestClaimsReachOnlyFiles checks that only the template of a file's content can print what an agent claims. Other
// templates cannot print it, not even through a template variable, whose fields are not checked when the template is
// compiled.
func TestClaimsReachOnlyFiles(t *testing.T) {
	d := render.Sample()
	d.Claimed.Hostname = "api.example.internal"
	for _, text := range []string{`{{ .Claimed.Hostname }}`, `{{ $.Claimed.Hostname }}`,
		`{{ if eq .Instance.ID "" }}{{ .Claimed.Hostname }}{{ end }}`,
		`{{ with . }}{{ .Claimed.Hostname }}{{ end }}`, `{{ $x := $ }}{{ $x.Claimed.Hostname }}`, `{{ json . }}`} {
		if tmpl, err := render.Compile("cn", text); err == nil {
			if got, err := tmpl.Execute(d); err == nil && strings.Contains(got, "api.example") {
				t.Errorf("%s printed %q", text, got)
			}
		}
		if u, err := render.CompileUserdata("userdata", text); err == nil {
			if got, err := u.Execute(d, "n"); err == nil && strings.Contains(got, "api.example") {
				t.Errorf("%s printed %q in a boot script", text, got)
			}
		}
	}
	file, err := render.CompileFile("a.env", "{{ .Claimed.Hostname }}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := file.Execute(d); err != nil || got != "api.example.internal" {
		t.Errorf("the content of a file is %q, %v", got, err)
	}
}

func TestUserdata(t *testing.T) {
	u, err := render.CompileUserdata("userdata", "{{ .Nonce }} {{ .Instance.Kind }} {{ .Vars.role }}")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := u.Execute(sample(), "secret.nonce"); err != nil || got != "secret.nonce knd worker" {
		t.Errorf("got %q, %v", got, err)
	}
	if diff := cmp.Diff([]string{"role"}, u.Vars()); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{`{{ index .Nonce "x" }}`, `{{ slice .Nonce 0 999 }}`, `{{ .Nonce.Foo }}`,
		`{{ eq .Nonce 1 }}`, `{{ call .Nonce }}`, `{{ .Vars.absent }}`,
		`{{ print .Nonce .Vars }}`, `{{ indent .Nonce "x" }}`, `{{ len 1 .Nonce }}`} {
		_, err := renderUserdata("userdata", text, sample(), "secret.nonce")
		if err == nil {
			t.Errorf("%s rendered", text)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the nonce: %v", text, err)
		}
	}
}

func TestNonceRedacts(t *testing.T) {
	n := render.Nonce("secret.nonce")
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "nonce", n, "in", struct{ N render.Nonce }{n})
	encoded, err := json.Marshal(map[string]any{"nonce": n})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprint(n), fmt.Sprintf("%v %+v %#v %s %q", n, n, n, n, n),
		fmt.Sprintf("%v %#v", struct {
			N render.Nonce
		}{n}, []render.Nonce{n}),
		log.String(), string(encoded)} {
		if strings.Contains(s, "secret") {
			t.Errorf("the nonce shows in %s", s)
		}
	}
}

func TestTree(t *testing.T) {
	tree := map[string]any{
		"ImageId": "{{ .Image.debian_13 }}",
		"List":    []any{"{{ .Vars.role }}", 1.5, true, nil, map[string]any{"{{ key }}": "x"}},
		"N":       3,
	}
	want := map[string]any{
		"ImageId": "ami-1",
		"List":    []any{"worker", 1.5, true, nil, map[string]any{"{{ key }}": "x"}},
		"N":       3,
	}
	got, err := render.Tree("args", tree, sample())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got.(map[string]any)["List"].([]any)[4].(map[string]any)["{{ key }}"] = "changed"
	if diff := cmp.Diff("x", tree["List"].([]any)[4].(map[string]any)["{{ key }}"]); diff != "" {
		t.Errorf("the result shares memory with the tree: %s", diff)
	}
	deep := any("x")
	for range 200 {
		deep = []any{deep}
	}
	for want, tree := range map[string]any{
		"args.a[1]: line 1:": map[string]any{"a": []any{"x", "{{ .Foo }}"}},
		"nested deeper":      deep,
		"not a JSON value":   map[string]any{"a": struct{}{}},
		"too large": []any{strings.Repeat("x", 200<<10), strings.Repeat("x", 200<<10),
			strings.Repeat("x", 200<<10), strings.Repeat("x", 200<<10), strings.Repeat("x", 200<<10),
			strings.Repeat("x", 200<<10)},
	} {
		if _, err := render.Tree("args", tree, sample()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestJSON(t *testing.T) {
	got, err := render.JSON("a.json", map[string]any{"role": "{{ .Vars.quote }}",
		"n": []any{1.0, "<{{ .Instance.Kind }}>"}}, sample())
	want := "{\n  \"n\": [\n    1,\n    \"<knd>\"\n  ],\n  \"role\": \"it's \\\"here\\\"\"\n}\n"
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestTemplatesAreConcurrent(t *testing.T) {
	tmpl, err := render.Compile("t", `{{ printf "%s" .Instance.ID }}`)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 200 {
				d := sample()
				d.Instance.ID = fmt.Sprint(i)
				if got, err := tmpl.Execute(d); err != nil || got != fmt.Sprint(i) {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	group.Wait()
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "{{ .Instance.ID }}", "{{ range .Vars }}{{ . }}{{ end }}",
		"{{ with $x := 5 }}{{ $x }}{{ end }}", `{{ printf "%5.3[1]q" .Vars.role | html | print 1 }}`,
		"{{ range 9999999999 }}{{ end }}", `{{ template "text" . }}`, "{{ define \"a\" }}{{ end }}", "{{ .Nonce }}",
		"{{ break }}", "{{/* c */}}", "{{- . -}}", "{{ (index .Vars \"role\").x }}"} {
		f.Add(s)
	}
	d := sample()
	f.Fuzz(func(t *testing.T, text string) {
		tmpl, err := render.Compile("t", text)
		if err != nil {
			return
		}
		out, err := tmpl.Execute(d)
		if err != nil {
			return
		}
		if len(out) > render.MaxOutput {
			t.Errorf("%d bytes", len(out))
		}
		if again, err := renderText("t", text, d); err != nil || again != out {
			t.Errorf("rendered again: %q, %v, before %q", again, err, out)
		}
		if _, err := renderUserdata("t", text, d, "n"); err != nil {
			t.Errorf("not as userdata: %v", err)
		}
	})
}

func TestReadsAllVars(t *testing.T) {
	for text, want := range map[string]bool{
		"text": false, "{{ .Vars.a }}": false, "{{ range .Image }}{{ . }}{{ end }}": false, "{{ $.Vars.a }}": false,
		`{{ index .Vars "a" }}`: true, "{{ range $.Vars }}{{ . }}{{ end }}": true,
		"{{ with $.Vars }}{{ .a }}{{ end }}": true,
		"{{ $v := .Vars }}{{ $v.a }}":        true, "{{ with $ }}{{ .Vars.a }}{{ end }}": true, "{{ json . }}": true,
		"{{ json $ }}": true, "{{ ($).Vars.a }}": true, "{{ if .Vars }}{{ end }}": true,
	} {
		tmpl, err := render.Compile("", text)
		if err != nil {
			continue // what does not compile is never rendered
		}
		if tmpl.ReadsAllVars() != want {
			t.Errorf("%s: %t, want %t", text, !want, want)
		}
	}
}

// renderText compiles and renders the content of one file.
func renderText(name, text string, d render.Data) (string, error) {
	t, err := render.CompileFile(name, text)
	if err != nil {
		return "", err
	}
	return t.Execute(d)
}

// renderUserdata compiles and renders one boot script.
func renderUserdata(name, text string, d render.Data, nonce render.Nonce) (string, error) {
	u, err := render.CompileUserdata(name, text)
	if err != nil {
		return "", err
	}
	return u.Execute(d, nonce)
}

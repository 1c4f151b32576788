package render_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nstance-kit/nstance/services/contract/render"
)

var awkward = []string{
	"", "plain", "/usr/bin:/bin", "a=b", "two words", " lead", "trail ", "\ttabs\t", `"quoted"`, `it's`, `'single'`,
	`back\slash`, `end\`, `\`, `\\`, `\n`, "$HOME", "${HOME}", "$(id)",
	"`id`", "line\nbreak", "back\\\nbreak", "\n", "\r\n", "cr\rcr", "# hash", "; semi", "a;b", "a&b|c<d>e", "*", "?",
	"[a]", "~", "~root", "a:~", "!!", "é – 日本", "{a,b}", "%s", "-n",
	"\x01\x1b\x7f", `"`, `$`, "$$", `\"$`, "a\n#b\n;c\nX=y", "{{", "\u00a0nbsp",
}

func TestEnv(t *testing.T) {
	got, err := render.Env("app.env", map[string]string{"B": "{{ .Vars.quote }}", "A": "{{ .Instance.ID }}", "_c1": ""},
		sample())
	want := "A=" + sample().Instance.ID + "\nB=\"it's \\\"here\\\"\"\n_c1=\"\"\n"
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	for want, vars := range map[string]map[string]string{
		`"1A" is not the name`:             {"1A": "x"},
		`"A-B" is not the name`:            {"A-B": "x"},
		`"A\nB" is not the name`:           {"A\nB": "x"},
		"1 to 256 characters":              {"": "x"},
		"app.env.A: line 1:":               {"A": "{{ .Foo }}"},
		"app.env.A: the value has a NUL":   {"A": "a\x00b"},
		"app.env.A: the value is not vali": {"A": "\xff"},
		"U+FEFF":                           {"A": "\ufeff"},
		"U+FFFE":                           {"A": "a\ufffe"},
		"U+FDD0":                           {"A": "\ufdd0"},
		"too large": {"A": strings.Repeat("$", 200<<10), "B": strings.Repeat("$", 200<<10),
			"C": strings.Repeat("$", 200<<10)},
	} {
		if _, err := render.Env("app.env", vars, sample()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v, want %q", vars, err, want)
		}
	}
}

// envOf returns an env file with the given values. It also returns a map from each variable's name to the value that
// the file must contain. The templates of the file read the values from .Vars.
func envOf(t *testing.T, values []string) ([]byte, map[string]string) {
	t.Helper()
	d := render.Sample()
	templates := map[string]string{}
	want := map[string]string{}
	for i, v := range values {
		key := fmt.Sprintf("V%03d", i)
		d.Vars[key] = v
		templates[key] = "{{ .Vars." + key + " }}"
		want[key] = v
	}
	file, err := render.Env("t", templates, d)
	if err != nil {
		t.Fatal(err)
	}
	return file, want
}

func TestShellReadsEnv(t *testing.T) {
	file, want := envOf(t, awkward)
	dir := t.TempDir()
	path := filepath.Join(dir, "app.env")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	keys := slices.Sorted(maps.Keys(want))
	script := "set -a; . \"$1\"; set +a\n"
	for _, key := range keys {
		script += `printf '%s\0' "$` + key + "\"\n"
	}
	for _, shell := range []string{"/bin/sh", "/bin/bash"} {
		if _, err := os.Stat(shell); err != nil && shell != "/bin/sh" {
			continue // only /bin/sh is sure to be there
		}
		cmd := exec.Command(shell, "-c", script, "sh", path)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", shell, err, out)
		}
		values := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if len(values) != len(keys) {
			t.Fatalf("%s: %d values, want %d: %q", shell, len(values), len(keys), out)
		}
		got := map[string]string{}
		for i, key := range keys {
			got[key] = values[i]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s reads other values (-want +got):\n%s", shell, diff)
		}
	}
}

func TestSystemdReadsEnv(t *testing.T) {
	file, want := envOf(t, awkward)
	if diff := cmp.Diff(want, readAsSystemd(t, string(file))); diff != "" {
		t.Errorf("systemd's rules read other values (-want +got):\n%s", diff)
	}
}

// readAsSystemd reads an environment file by the rules of systemd.exec(5), EnvironmentFile=. It supports one assignment
// per line. A value is in double quotes or unquoted.
func readAsSystemd(t *testing.T, file string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for file != "" {
		file = strings.TrimLeft(file, " \t\r\n")
		if file == "" {
			break
		}
		if file[0] == '#' || file[0] == ';' {
			_, file, _ = strings.Cut(file, "\n")
			continue
		}
		key, rest, ok := strings.Cut(file, "=")
		if !ok || strings.ContainsAny(key, "\n \t") {
			t.Fatalf("no assignment at %.40q", file)
		}
		rest = strings.TrimLeft(rest, " \t\r")
		var value strings.Builder
		i := 0
		if strings.HasPrefix(rest, `"`) {
			for i = 1; rest[i] != '"'; i++ {
				if rest[i] == '\\' {
					i++
					switch {
					case rest[i] == '\n': // a continuation: both characters vanish
						continue
					case strings.IndexByte("\"\\`$", rest[i]) < 0: // any other backslash stays
						value.WriteByte('\\')
					}
				}
				value.WriteByte(rest[i])
			}
			i++
			if i >= len(rest) || rest[i] != '\n' {
				t.Fatalf("text after the closing quote of %s: %.40q", key, rest[i:])
			}
			out[key] = value.String()
		} else {
			for ; rest[i] != '\n'; i++ {
				if rest[i] == '\\' {
					i++
					if rest[i] == '\n' {
						continue
					}
				}
				value.WriteByte(rest[i])
			}
			out[key] = strings.TrimRight(value.String(), " \t\r")
		}
		file = rest[i+1:]
	}
	return out
}

func FuzzEnv(f *testing.F) {
	for _, s := range awkward {
		f.Add(s)
	}
	f.Add("\xff")
	f.Add("\x00")
	f.Fuzz(func(t *testing.T, value string) {
		d := render.Sample()
		d.Vars["v"] = value
		file, err := render.Env("t", map[string]string{"A": "{{ .Vars.v }}", "B": "next"}, d)
		if err != nil {
			return
		}
		want := map[string]string{"A": value, "B": "next"}
		if diff := cmp.Diff(want, readAsSystemd(t, string(file))); diff != "" {
			t.Errorf("systemd's rules read other values (-want +got):\n%s", diff)
		}
		// Inside double quotes, a shell gives only \, ", ` and $ a meaning. The file must escape each of them.
		if line, ok := strings.CutPrefix(string(file), `A="`); ok {
			body := line[:len(line)-len("\"\nB=next\n")]
			unescaped := strings.NewReplacer(`\\`, "", `\"`, "", "\\`", "", `\$`, "").Replace(body)
			if strings.ContainsAny(unescaped, "\"\\`$") {
				t.Errorf("a shell would expand %s", file)
			}
		}
	})
}

package server

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nstance-kit/nstance/services/contract/config"
)

func TestValidate(t *testing.T) {
	data := filepath.Join("..", "..", "contract", "testdata")
	var out, errOut bytes.Buffer
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "ten-mistakes.jsonc")}, nil, &out,
		&errOut); code != 1 {
		t.Errorf("ten mistakes: exit %d", code)
	}
	positions := 0
	for line := range strings.Lines(errOut.String()) {
		if strings.Contains(line, "ten-mistakes.jsonc:") && strings.Count(line, ":") >= 3 {
			positions++
		}
	}
	if positions != 10 {
		t.Errorf("%d problems with positions:\n%s", positions, errOut.String())
	}
	errOut.Reset()
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "v1", "config.jsonc")}, nil, &out,
		&errOut); code != 0 || !strings.Contains(out.String(), "valid") {
		t.Errorf("a good file: exit %d, %s%s", code, out.String(), errOut.String())
	}
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "no-such-file")}, nil, &out,
		&errOut); code != 1 {
		t.Errorf("no file: exit %d", code)
	}
	errOut.Reset()
	problem := config.Problem{Path: "defaults.args.Bad", Message: "there is no such field", Hint: "mend it"}
	providers := map[string]ProviderKind{"aws": {Check: func(*config.Shard) config.Problems {
		return config.Problems{problem}
	}}}
	file := filepath.Join(data, "v1", "config.jsonc")
	if code := Validate(t.Context(), Options{ValidateFile: file}, providers, &out, &errOut); code != 1 ||
		!strings.Contains(errOut.String(), "config.jsonc: defaults.args.Bad: there is no such field (mend it)\n") {
		t.Errorf("what the provider refuses: exit %d, %s", code, errOut.String())
	}
}

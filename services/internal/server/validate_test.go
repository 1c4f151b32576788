package server

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	data := filepath.Join("..", "..", "contract", "testdata")
	var out, errOut bytes.Buffer
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "ten-mistakes.jsonc")}, nil, &out, &errOut); code != 1 {
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
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "v1", "config.jsonc")}, nil, &out, &errOut); code != 0 || !strings.Contains(out.String(), "valid") {
		t.Errorf("a good file: exit %d, %s%s", code, out.String(), errOut.String())
	}
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "no-such-file")}, nil, &out, &errOut); code != 1 {
		t.Errorf("no file: exit %d", code)
	}
}

package server

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	data := filepath.Join("..", "..", "contract", "testdata")
	var out, errOut bytes.Buffer
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "ten-mistakes.jsonc")}, &out,
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
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "v1", "config.jsonc")}, &out,
		&errOut); code != 0 || !strings.Contains(out.String(), "valid") {
		t.Errorf("a good file: exit %d, %s%s", code, out.String(), errOut.String())
	}
	if code := Validate(t.Context(), Options{ValidateFile: filepath.Join(data, "no-such-file")}, &out,
		&errOut); code != 1 {
		t.Errorf("no file: exit %d", code)
	}
	errOut.Reset()
	config, err := os.ReadFile(filepath.Join(data, "v1", "config.jsonc"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config.jsonc")
	config = bytes.Replace(config, []byte(`"EbsOptimized": true`), []byte(`"EbsOptimised": true`), 1)
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := Validate(t.Context(), Options{ValidateFile: file}, &out, &errOut); code != 1 ||
		!strings.Contains(errOut.String(), `templates.worker.args.EbsOptimised: `) ||
		!strings.Contains(errOut.String(), `did you mean "EbsOptimized"?`) {
		t.Errorf("args that the cloud refuses: exit %d, %s", code, errOut.String())
	}
}

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

// Line is a line of a server's log, with the attributes that the tests read.
type Line struct {
	Time   time.Time `json:"time"`
	Msg    string    `json:"msg"`
	Term   uint64    `json:"term"`
	Server string    `json:"server"`
	Heir   string    `json:"heir"`
}

// Lines reads the log of a server. It skips incomplete lines and lines that are not JSON, such as the output of a
// crash.
func (s *Stack) Lines(server string) ([]Line, error) {
	raw, err := os.ReadFile(s.LogFile(server))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var lines []Line
	for text := range bytes.Lines(raw) {
		var line Line
		if bytes.HasSuffix(text, []byte("\n")) && json.Unmarshal(text, &line) == nil {
			lines = append(lines, line)
		}
	}
	return lines, nil
}

// AwaitLine waits until any server has logged the message msg in a term greater than `above`, and returns that log
// line.
func (s *Stack) AwaitLine(ctx context.Context, msg string, above uint64) (Line, error) {
	for {
		for n := 1; n <= s.Servers; n++ {
			lines, err := s.Lines(ServerName(n))
			if err != nil {
				return Line{}, err
			}
			for _, line := range lines {
				if line.Msg == msg && line.Term > above {
					return line, nil
				}
			}
		}
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return Line{}, fmt.Errorf("no server logged %q in a term above %d: %w", msg, above, err)
		}
	}
}

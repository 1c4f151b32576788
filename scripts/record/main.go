// Command record runs a program and writes its output as an animated SVG: each part appears when the program printed
// it. Browsers play the animation in an <img>, as Git hosts show it. `make pictures` records `make demo`.
//
//	go run ./scripts/record -out demo.svg -title '$ make demo' PROGRAM [ARGUMENT...]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"
)

func main() {
	out := flag.String("out", "", "file to write")
	title := flag.String("title", "", "the command line that is shown first")
	columns := flag.Int("columns", 124, "width of the screen; longer lines are cut")
	rows := flag.Int("rows", 26, "height of the screen")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, screen{title: *title, columns: *columns, rows: *rows}, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, s screen, args []string) error {
	if out == "" || len(args) == 0 {
		return errors.New("usage: record -out FILE [flags] PROGRAM [ARGUMENT...]")
	}
	chunks, err := record(ctx, args)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(s.svg(split(chunks))), 0o644)
}

// chunk is what a program printed at a time after its start.
type chunk struct {
	at   time.Duration
	text string
}

// record runs a program and returns its standard output.
func record(ctx context.Context, args []string) (chunks []chunk, err error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	start := time.Now()
	buffer := make([]byte, 64<<10)
	for {
		n, readErr := pipe.Read(buffer)
		if n > 0 {
			chunks = append(chunks, chunk{time.Since(start), string(buffer[:n])})
			fmt.Print(string(buffer[:n]))
		}
		if errors.Is(readErr, io.EOF) {
			return chunks, cmd.Wait()
		}
		if readErr != nil {
			return nil, readErr
		}
	}
}

// part is a part of a line on the screen.
type part struct {
	at           time.Duration
	line, column int
	text         string
}

// pace is the shortest time between two lines. A program prints a table in no time, and nobody can read that.
const pace = 200 * time.Millisecond

// split returns the parts of the lines, in order.
func split(chunks []chunk) (parts []part) {
	line, column := 0, 0
	var shown, began time.Duration // of the last part, and of the last line
	for _, c := range chunks {
		for i, text := range strings.Split(c.text, "\n") {
			shown = max(shown, c.at)
			if i > 0 {
				line, column = line+1, 0
				shown = max(shown, began+pace)
				began = shown
			}
			if text != "" {
				parts = append(parts, part{shown, line, column, text})
				column += len([]rune(text))
			}
		}
	}
	return parts
}

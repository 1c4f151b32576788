package admin

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// style holds the colors of standard output and standard error.
type style struct{ out, err palette }

type palette bool

func newStyle(env Environment) style {
	colours := env.Getenv("NO_COLOR") == "" && env.Getenv("TERM") != "dumb" // https://no-color.org
	return style{out: palette(colours && isTerminal(env.Stdout)), err: palette(colours && isTerminal(env.Stderr))}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ) // fails for other devices, such as /dev/null
	return err == nil
}

func (p palette) paint(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) bad(text string) string  { return p.paint("31", text) }
func (p palette) good(text string) string { return p.paint("32", text) }
func (p palette) warn(text string) string { return p.paint("33", text) }
func (p palette) dim(text string) string  { return p.paint("2", text) }

// line writes one line to standard output.
func (a *app) line(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Stdout, format+"\n", args...)
	return err
}

// note writes one line for people to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// format is the output format of a command.
type format string

var formats = []string{"table", "wide", "json", "yaml"}

// outputFlag adds --output to a command.
func outputFlag(cmd *cobra.Command) *format {
	f := new(format("table"))
	cmd.Flags().VarP(f, "output", "o",
		"output format: table, wide (a table with more columns), json or yaml")
	// This call fails only if the flag already has a completion function.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return f
}

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if !slices.Contains(formats, text) {
		return fmt.Errorf("want one of %s", strings.Join(formats, ", "))
	}
	*f = format(text)
	return nil
}

// show prints the value as JSON or YAML. For any other format, it calls `table`, which prints the value.
func (a *app) show(f format, value any, table func(io.Writer) error) error {
	switch f {
	case "json":
		return writeJSON(a.Stdout, value)
	case "yaml":
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = a.Stdout.Write(text)
		return err
	}
	return table(a.Stdout)
}

func writeJSON(w io.Writer, value any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(value)
}

// cell is one text of a table. Color codes do not count towards its width.
type cell struct {
	text  string
	paint func(string) string
}

func plain(texts ...string) []cell {
	cells := make([]cell, len(texts))
	for i, text := range texts {
		cells[i].text = text
	}
	return cells
}

// table writes rows in aligned columns under a header, and nothing if there are no rows. A column with a "+" before its
// name is only in the format "wide", and one with a "-" is not in that format. A column with a "*" before its name, as
// that of the shards, is only there if the command asks several shards.
func (a *app) table(w io.Writer, head []string, rows [][]cell) error {
	if len(rows) == 0 {
		return nil
	}
	return a.columns(head).write(w, true, rows)
}

// columns writes rows of a table, also one after the other.
type columns struct {
	palette palette
	names   []string
	shown   []int // indexes of the columns that are shown
	widths  []int
}

// columns returns the columns of a table that are shown. [app.table] describes their heads.
func (a *app) columns(head []string) *columns {
	c := &columns{palette: a.style.out}
	wide := a.running != nil && flagText(a.running, "output") == "wide"
	hidden := func(name string) bool {
		return strings.HasPrefix(name, "+") && !wide || strings.HasPrefix(name, "-") && wide ||
			strings.HasPrefix(name, "*") && !a.severalShards
	}
	for n, name := range head {
		if !hidden(name) {
			c.names, c.shown = append(c.names, strings.TrimLeft(name, "+-*")), append(c.shown, n)
			c.widths = append(c.widths, utf8.RuneCountInString(c.names[len(c.names)-1]))
		}
	}
	return c
}

// fit makes the columns at least as wide as the cells of rows. It replaces control characters in the cells, which
// external names may contain, by '?'.
func (c *columns) fit(rows [][]cell) {
	for _, row := range rows {
		for i, n := range c.shown {
			row[n].text = cmp.Or(printable(row[n].text), "-")
			c.widths[i] = max(c.widths[i], utf8.RuneCountInString(row[n].text))
		}
	}
}

// write writes rows in aligned columns, under a header if head is set.
func (c *columns) write(w io.Writer, head bool, rows [][]cell) error {
	c.fit(rows)
	var b strings.Builder
	line := func(cell func(i int) cell) {
		for i := range c.shown {
			text := cell(i)
			pad := "\n"
			if i < len(c.shown)-1 {
				pad = strings.Repeat(" ", c.widths[i]-utf8.RuneCountInString(text.text)+3)
			}
			if text.paint != nil {
				text.text = text.paint(text.text)
			}
			b.WriteString(text.text + pad)
		}
	}
	if head {
		line(func(i int) cell { return cell{c.names[i], c.palette.dim} })
	}
	for _, row := range rows {
		line(func(i int) cell { return row[c.shown[i]] })
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// showAll shows a list: as a table, one row for each item. Without items, it prints the text `none` to standard error.
func showAll[T any](a *app, f format, value any, items []T, none string, head []string, row func(T) []cell) error {
	return a.show(f, value, func(w io.Writer) error {
		if len(items) == 0 {
			a.note("%s", none)
			return nil
		}
		return a.table(w, head, rowsOf(items, row))
	})
}

func rowsOf[T any](items []T, row func(T) []cell) (rows [][]cell) {
	for _, item := range items {
		rows = append(rows, row(item))
	}
	return rows
}

// fact is a name and a value, printed on one line. Facts without a value are omitted.
type fact struct{ name, value string }

func writeFacts(w io.Writer, p palette, facts []fact) error {
	width := 0
	facts = slices.DeleteFunc(slices.Clone(facts), func(f fact) bool { return f.value == "" })
	for _, f := range facts {
		width = max(width, utf8.RuneCountInString(f.name))
	}
	var b strings.Builder
	for _, f := range facts {
		fmt.Fprintf(&b, "%s%s   %s\n", p.dim(f.name+":"), strings.Repeat(" ", width-utf8.RuneCountInString(f.name)),
			printable(f.value))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}

// stamp formats a time in UTC with a resolution of one second. It returns "" for the zero time.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// age formats the time from `then` to `now` in one unit, such as "10m".
func age(now, then time.Time) string {
	if then.IsZero() {
		return ""
	}
	n, unit := fleet.Age(now.Sub(then))
	return fmt.Sprint(n) + unit[:1]
}

// patience is the time after which a message says what the program waits for.
const patience = time.Second

// during runs the function `do`. If `do` takes more than a second, a message on standard error says what the program
// waits for. On a terminal, the message also counts the seconds.
func during[T any](a *app, what string, do func() T) T {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { a.progress(what, done) })
	defer wg.Wait()
	defer close(done)
	return do()
}

func (a *app) progress(what string, done <-chan struct{}) {
	began := time.Now()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	terminal := isTerminal(a.Stderr) && a.Getenv("TERM") != "dumb"
	for shown := false; ; shown = true {
		select {
		case <-done:
			if shown && terminal {
				fmt.Fprint(a.Stderr, "\r\x1b[K")
			}
			return
		case <-timer.C:
		}
		if !terminal {
			a.note("%s …", what)
			<-done
			return
		}
		fmt.Fprintf(a.Stderr, "\r%s … %ds\x1b[K", what, int(time.Since(began).Seconds()))
		timer.Reset(patience)
	}
}

// refuseExisting returns an error if the file already exists. Commands call it before long work.
func refuseExisting(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Lstat(path); err == nil {
		return withHint(fmt.Errorf("%s exists already, and is not replaced", path), "choose another name with --output")
	}
	return nil
}

// writeNewFile writes a file under a temporary name, with access for the owner only, and then renames the file. It does
// not replace an existing file.
func writeNewFile(path string, write func(io.Writer) error) (size int64, err error) {
	if err := refuseExisting(path); err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(file.Name()) }() // fails after a rename
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if err == nil {
		size, err = file.Seek(0, io.SeekCurrent)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Link(file.Name(), path) // unlike a rename, it replaces nothing
		if err != nil && !errors.Is(err, fs.ErrExist) {
			// The file system may lack hard links, so rename the file. The rename could replace a file that another
			// program has just made.
			if err = refuseExisting(path); err == nil {
				err = os.Rename(file.Name(), path)
			}
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", path, err)
	}
	return size, nil
}

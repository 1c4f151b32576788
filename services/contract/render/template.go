package render

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"text/template"
	"text/template/parse"
)

const (
	// MaxSource is the longest template, in bytes.
	MaxSource = 256 << 10
	// MaxOutput is the longest text that one call renders, in bytes.
	MaxOutput = 1 << 20
	// MaxVars is the maximum number of vars, and of images, in a template's data. It limits the steps of loops over
	// them.
	MaxVars = 1000

	maxWork      = 8 << 20 // bytes that the functions of one execution may make
	maxLoopNodes = 1000    // parts of a template that are inside loops
)

// ErrTooLarge means that a template or its output is over a limit.
var ErrTooLarge = errors.New("too large")

// Template is a compiled template. It is safe for concurrent use.
type Template struct {
	name, text string
	tmpl       *template.Template // nil if the text has no actions
	vars       []string
	allVars    bool
	claims     bool // the template can refer to .Claimed
}

// Compile parses a template and checks every field that it refers to, also in branches that are not executed. The name
// is for errors only. The template cannot refer to .Claimed.
func Compile(name, text string) (*Template, error) {
	return compile(name, text, reflect.TypeFor[facts]())
}

// CompileFile is [Compile] for the content of a file, which can also refer to .Claimed.
func CompileFile(name, text string) (*Template, error) {
	t, err := compile(name, text, reflect.TypeFor[Data]())
	if err != nil {
		return nil, err
	}
	t.claims = true
	return t, nil
}

// Execute renders the template.
func (t *Template) Execute(d Data) (string, error) { return t.executeWith(d, newBudget()) }

func (t *Template) executeWith(d Data, b *budget) (string, error) {
	if t.claims {
		return t.execute(d, d, b)
	}
	return t.execute(d, facts{d.Instance, d.Cluster, d.Server, d.Provider, d.Vars, d.Image}, b)
}

// Vars returns the names of the variables that the template refers to as .Vars.name, in order of appearance.
func (t *Template) Vars() []string { return append([]string(nil), t.vars...) }

// ReadsAllVars reports whether the template may read variables that [Template.Vars] does not return. An example is a
// template with {{ index .Vars "name" }}.
func (t *Template) ReadsAllVars() bool { return t.allVars }

// Userdata is a compiled boot script: a [Template] that can also refer to .Nonce.
type Userdata struct{ t *Template }

// CompileUserdata is [Compile] for boot scripts.
func CompileUserdata(name, text string) (*Userdata, error) {
	t, err := compile(name, text, reflect.TypeFor[userdata]())
	if err != nil {
		return nil, err
	}
	return &Userdata{t}, nil
}

// Execute renders the boot script. The result holds the nonce: it must not be logged or stored.
func (u *Userdata) Execute(d Data, nonce Nonce) (string, error) {
	root := userdata{d.Instance, d.Cluster, d.Server, d.Provider, d.Vars, d.Image, string(nonce)}
	return u.t.execute(d, root, newBudget())
}

// Vars is [Template.Vars].
func (u *Userdata) Vars() []string { return u.t.Vars() }

func textWith(name, text string, d Data, b *budget) (string, error) {
	t, err := CompileFile(name, text)
	if err != nil {
		return "", err
	}
	return t.executeWith(d, b)
}

// innerName is the name under which text/template compiles every template. Its error messages contain that name, which
// is removed from them.
const innerName = "text"

func compile(name, text string, root reflect.Type) (*Template, error) {
	if len(text) > MaxSource {
		return nil, fmt.Errorf("%s: a template of %d bytes, at most %d are allowed: %w", name, len(text), MaxSource,
			ErrTooLarge)
	}
	t := &Template{name: name, text: text}
	if !strings.Contains(text, "{{") {
		return t, nil
	}
	tmpl, err := template.New(innerName).Option("missingkey=error").Funcs(newBudget().funcs()).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, cleanError(err))
	}
	for _, other := range tmpl.Templates() {
		if other.Name() != innerName {
			return nil, fmt.Errorf("%s: define and block are not available", name)
		}
	}
	c := checker{tree: tmpl.Tree, root: root, seen: map[string]bool{}}
	c.list(tmpl.Root, true)
	if c.err != nil {
		return nil, fmt.Errorf("%s: %w", name, c.err)
	}
	t.tmpl, t.vars, t.allVars = tmpl, c.vars, c.allVars
	return t, nil
}

func (t *Template) execute(d Data, root any, b *budget) (string, error) {
	if len(d.Vars) > MaxVars || len(d.Image) > MaxVars {
		return "", fmt.Errorf("%s: %d vars and %d images, at most %d of each are allowed: %w",
			t.name, len(d.Vars), len(d.Image), MaxVars, ErrTooLarge)
	}
	out := limitedWriter{budget: b}
	if t.tmpl == nil {
		if _, err := out.Write([]byte(t.text)); err != nil {
			return "", fmt.Errorf("%s: %w", t.name, err)
		}
		return t.text, nil
	}
	// The template functions count their output, so each execution needs its own functions.
	tmpl, err := t.tmpl.Clone()
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.name, err)
	}
	if err := tmpl.Funcs(b.funcs()).Execute(&out, root); err != nil {
		return "", fmt.Errorf("%s: %w", t.name, cleanError(err))
	}
	return out.text.String(), nil
}

// limitedWriter limits the output of all templates of one call to MaxOutput.
type limitedWriter struct {
	budget *budget
	text   strings.Builder
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.budget.output -= len(p); w.budget.output < 0 {
		return 0, fmt.Errorf("the text is longer than %d bytes: %w", MaxOutput, ErrTooLarge)
	}
	return w.text.Write(p)
}

// templateError has the message of an error of text/template without the template's name. That name is always
// innerName.
type templateError struct {
	message string
	err     error
}

func (e *templateError) Error() string { return e.message }
func (e *templateError) Unwrap() error { return e.err }

func cleanError(err error) error {
	message := strings.TrimPrefix(err.Error(), "template: "+innerName+":")
	message = strings.Replace(message, `executing "`+innerName+`" at`, "at", 1)
	if message == err.Error() {
		return err
	}
	return &templateError{message: "line " + message, err: err}
}

// checker walks a parse tree. It refuses unbounded loops and fields that the data does not have.
type checker struct {
	tree      *parse.Tree
	root      reflect.Type
	err       error
	vars      []string
	allVars   bool            // the map of variables is read as a whole
	seen      map[string]bool // vars
	inLoop    bool
	loopNodes int
}

func (c *checker) fail(node parse.Node, format string, args ...any) {
	if c.err == nil {
		location, _ := c.tree.ErrorContext(node)
		c.err = fmt.Errorf("line %s: %s", strings.TrimPrefix(location, innerName+":"), fmt.Sprintf(format, args...))
	}
}

// list checks a list of nodes. dotIsRoot means that "." in these nodes is the data of the whole template.
func (c *checker) list(list *parse.ListNode, dotIsRoot bool) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		c.node(node, dotIsRoot)
	}
}

func (c *checker) node(node parse.Node, dotIsRoot bool) {
	if c.inLoop {
		if c.loopNodes++; c.loopNodes > maxLoopNodes {
			c.fail(node, "more than %d parts inside loops", maxLoopNodes)
			return
		}
	}
	switch n := node.(type) {
	case *parse.ActionNode:
		c.checkPrinted(n, dotIsRoot)
		c.node(n.Pipe, dotIsRoot)
	case *parse.IfNode:
		c.node(n.Pipe, dotIsRoot)
		c.list(n.List, dotIsRoot)
		c.list(n.ElseList, dotIsRoot)
	case *parse.WithNode:
		c.node(n.Pipe, dotIsRoot)
		c.list(n.List, false)
		c.list(n.ElseList, dotIsRoot)
	case *parse.RangeNode:
		c.loop(n, dotIsRoot)
	case *parse.TemplateNode:
		c.fail(n, "define, block and template are not available")
	case *parse.PipeNode:
		for _, cmd := range n.Cmds {
			for _, arg := range cmd.Args {
				c.node(arg, dotIsRoot)
			}
		}
	case *parse.ChainNode:
		c.node(n.Node, dotIsRoot)
	case *parse.DotNode, *parse.FieldNode, *parse.VariableNode:
		if path, ok := c.path(n, dotIsRoot); ok {
			c.field(n, path)
		}
	}
}

// checkPrinted refuses a template that prints a whole struct or map. Its author has probably forgotten the name of a
// field.
func (c *checker) checkPrinted(n *parse.ActionNode, dotIsRoot bool) {
	if len(n.Pipe.Decl) > 0 || len(n.Pipe.Cmds) != 1 || len(n.Pipe.Cmds[0].Args) != 1 {
		return
	}
	path, ok := c.path(n.Pipe.Cmds[0].Args[0], dotIsRoot)
	if typ, _ := resolve(c.root, path); ok && typ != nil && typ.Kind() != reflect.String {
		c.fail(n, "%s is not text; %s", "."+strings.Join(path, "."), known(typ, path))
	}
}

// path returns the path from the data to the field that a node refers to. The second result is false if the node does
// not refer to a field of the data.
func (c *checker) path(node parse.Node, dotIsRoot bool) ([]string, bool) {
	switch n := node.(type) {
	case *parse.DotNode:
		return nil, dotIsRoot
	case *parse.FieldNode:
		return n.Ident, dotIsRoot
	case *parse.VariableNode:
		return n.Ident[1:], n.Ident[0] == "$"
	}
	return nil, false
}

// loop checks a range. The range may iterate only over a map of the data, and must not be inside another range. So the
// number of steps is bounded.
func (c *checker) loop(n *parse.RangeNode, dotIsRoot bool) {
	if c.inLoop {
		c.fail(n, "a range inside another is not available")
		return
	}
	var path []string
	if len(n.Pipe.Cmds) == 1 && len(n.Pipe.Cmds[0].Args) == 1 {
		path, _ = c.path(n.Pipe.Cmds[0].Args[0], dotIsRoot)
	}
	if typ, _ := resolve(c.root, path); typ == nil || typ.Kind() != reflect.Map {
		c.fail(n, "range is available over $.Vars and $.Image only")
		return
	}
	c.allVars = c.allVars || path[0] == "Vars"
	c.inLoop = true
	c.list(n.List, false)
	c.inLoop = false
	c.list(n.ElseList, dotIsRoot)
}

func (c *checker) field(node parse.Node, path []string) {
	if typ, at := resolve(c.root, path); typ == nil {
		if path[0] == "Claimed" && at == 0 {
			c.fail(node, ".Claimed, which an agent says of itself, is only for the content of files "+
				"(env, json, string); use .Instance, which the provider knows")
			return
		}
		parent, _ := resolve(c.root, path[:at])
		c.fail(node, "there is no %s; %s", "."+strings.Join(path[:at+1], "."), known(parent, path[:at]))
		return
	}
	c.allVars = c.allVars || len(path) == 0 || len(path) == 1 && path[0] == "Vars"
	if len(path) == 2 && path[0] == "Vars" && !c.seen[path[1]] {
		c.seen[path[1]] = true
		c.vars = append(c.vars, path[1])
	}
}

// resolve returns the type at path, starting from typ. Each name in path is a field of a struct or a key of a map. If a
// name does not exist, resolve returns nil and the name's index.
func resolve(typ reflect.Type, path []string) (reflect.Type, int) {
	for i, name := range path {
		switch typ.Kind() {
		case reflect.Map:
			typ = typ.Elem()
		case reflect.Struct:
			field, ok := typ.FieldByName(name)
			if !ok {
				return nil, i
			}
			typ = field.Type
		default:
			return nil, i
		}
	}
	return typ, len(path)
}

// known returns a text for error messages. It says which names may come after path in a template.
func known(typ reflect.Type, path []string) string {
	prefix := "." + strings.Join(path, ".")
	switch typ.Kind() {
	case reflect.Struct:
	case reflect.Map:
		return "name one of them, as " + prefix + ".name"
	default:
		return prefix + " is text"
	}
	names := make([]string, typ.NumField())
	for i := range names {
		names[i] = typ.Field(i).Name
	}
	if len(path) == 0 {
		return "there are ." + strings.Join(names, ", .")
	}
	return prefix + " has " + strings.Join(names, ", ")
}

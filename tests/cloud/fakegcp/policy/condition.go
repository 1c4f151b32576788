package policy

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Attributes are the attributes of a call. Conditions in policies compare them with other values.
// https://cloud.google.com/iam/docs/conditions-attribute-reference
type Attributes struct {
	Name, Type string            // of the resource
	API        map[string]string // of the call, such as storage.googleapis.com/objectListPrefix
}

// Evaluate evaluates a condition. It knows the part of CEL that the modules use: ||, &&, !, and parentheses. The
// attributes resource.name, resource.type and api.getAttribute can be compared with a string by ==, startsWith and
// endsWith.
func Evaluate(expression string, attributes Attributes) (bool, error) {
	p := parser{tokens: token.FindAllString(expression, -1), attributes: attributes}
	if strings.Join(p.tokens, "") != blank.ReplaceAllString(expression, "$1") {
		return false, fmt.Errorf("%q has more than this fake knows", expression)
	}
	value, err := p.or()
	if err == nil && len(p.tokens) > 0 {
		err = fmt.Errorf("unexpected %q", p.tokens[0])
	}
	return value, err
}

// maxOperators is how many logical operators a condition may have. https://cloud.google.com/iam/quotas
const maxOperators = 12

var (
	operators = regexp.MustCompile(`\|\||&&|!`)

	token = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\|\||&&|==|!|[(),.]|\w+`)
	// blank matches a quoted text or white space. Replacing each match by $1 keeps quoted texts and removes white space
	// outside of them.
	blank = regexp.MustCompile(`("(?:[^"\\]|\\.)*")|\s+`)
)

type parser struct {
	tokens     []string
	attributes Attributes
}

// take consumes the next token if it equals want, and reports whether it did.
func (p *parser) take(want string) bool {
	if len(p.tokens) == 0 || p.tokens[0] != want {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) or() (bool, error) {
	value, err := p.and()
	for err == nil && p.take("||") {
		var right bool
		right, err = p.and()
		value = value || right
	}
	return value, err
}

func (p *parser) and() (bool, error) {
	value, err := p.term()
	for err == nil && p.take("&&") {
		var right bool
		right, err = p.term()
		value = value && right
	}
	return value, err
}

func (p *parser) term() (bool, error) {
	switch {
	case p.take("!"):
		value, err := p.term()
		return !value, err
	case p.take("("):
		value, err := p.or()
		if err == nil && !p.take(")") {
			err = errors.New("a parenthesis is not closed")
		}
		return value, err
	}
	text, err := p.attribute()
	if err != nil {
		return false, err
	}
	if p.take("==") {
		want, err := p.text()
		return text == want, err
	}
	if !p.take(".") || len(p.tokens) == 0 {
		return false, errors.New("a text is no condition")
	}
	compare := map[string]func(string, string) bool{"startsWith": strings.HasPrefix,
		"endsWith": strings.HasSuffix}[p.tokens[0]]
	if compare == nil {
		return false, fmt.Errorf("unknown function %q", p.tokens[0])
	}
	p.tokens = p.tokens[1:]
	if !p.take("(") {
		return false, errors.New("a function has no arguments")
	}
	want, err := p.text()
	if err == nil && !p.take(")") {
		err = errors.New("a parenthesis is not closed")
	}
	return compare(text, want), err
}

// attribute returns the value of resource.name, resource.type or api.getAttribute(name, default).
func (p *parser) attribute() (string, error) {
	of, tokens := "", p.tokens
	if len(tokens) >= 3 && tokens[1] == "." {
		of, p.tokens = tokens[0]+"."+tokens[2], tokens[3:]
	}
	switch of {
	case "resource.name":
		return p.attributes.Name, nil
	case "resource.type":
		return p.attributes.Type, nil
	case "api.getAttribute":
		if !p.take("(") {
			return "", errors.New("getAttribute has no arguments")
		}
		name, err := p.text()
		if err != nil {
			return "", err
		}
		if !p.take(",") {
			return "", errors.New("getAttribute needs a default")
		}
		value, err := p.text()
		if err != nil {
			return "", err
		}
		if !p.take(")") {
			return "", errors.New("a parenthesis is not closed")
		}
		if given, ok := p.attributes.API[name]; ok {
			value = given
		}
		return value, nil
	}
	return "", fmt.Errorf("unknown attribute in %q", strings.Join(tokens, " "))
}

func (p *parser) text() (string, error) {
	if len(p.tokens) == 0 || p.tokens[0][0] != '"' {
		return "", errors.New("a text is missing")
	}
	text, err := strconv.Unquote(p.tokens[0])
	p.tokens = p.tokens[1:]
	return text, err
}

package config

// ValidateKnown is [Validate] for a config with values that are not known yet, as in a Terraform plan. It omits
// problems that exist only because of unknown values. unknown lists the paths of these values, written like
// [Problem.Path]. Everything below such a path is unknown too.
func ValidateKnown(s *Shard, unknown ...string) Problems {
	d := &decoder{tainted: unknown}
	c := &checker{found: d.relevant(check(s))}
	return c.problems()
}

// ParseTree parses a single JSON value with comments and trailing commas, such as the arguments of a template. It is as
// strict as [Parse]. The paths of the problems are relative to the value. The result is nil if there are errors.
func ParseTree(filename string, src []byte) (any, Problems) {
	d := &decoder{file: filename, src: src}
	root, ok := d.parse()
	if !ok {
		return nil, d.problems(nil)
	}
	value := d.tree(root, "")
	if problems := d.problems(nil); len(problems) > 0 {
		return nil, problems
	}
	return value, nil
}

// JoinPath is the inverse of [SplitPath].
func JoinPath(elements ...any) string { return join(elements) }

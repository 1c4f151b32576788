package config

// ValidateKnown is [Validate] for a config of which some values are not known yet, as in a Terraform plan: it leaves
// out what is wrong only because of them. The paths of the unknown values are those of [Problem]; a value below an
// unknown one is unknown too.
func ValidateKnown(s *Shard, unknown ...string) Problems {
	d := &decoder{tainted: unknown}
	c := &checker{found: d.relevant(check(s))}
	return c.problems()
}

// ParseTree reads one JSON value by itself, with comments and trailing commas, such as the arguments of a template. It
// is as strict as [Parse], and its paths begin at the value. The result is nil if there are errors.
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

// JoinPath is the opposite of [SplitPath].
func JoinPath(elements ...any) string { return join(elements) }

package operatorapi

import (
	"cmp"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/config"
	"github.com/nstance-kit/nstance/services/contract/ident"
)

// Limits of a request. They are generous and only keep a mistaken request from doing harm.
const (
	maxList     = 64     // entries of a list
	maxOrphans  = 16_384 // orphans that one request confirms
	maxText     = 256    // bytes of a name that is not an identifier
	maxReason   = 512    // bytes
	maxVars     = 1024   // entries
	maxVarsSize = 96 << 10
)

// groupName checks the name of a group.
func groupName(field, name string) error {
	if err := ident.ValidateName(name); err != nil {
		return invalid(field, "%v", err)
	}
	return nil
}

func instanceID(text string) (ident.ID, error) {
	if text == "" {
		return ident.ID{}, invalid("instance_id", "is empty")
	}
	id, err := ident.ParseID(text)
	if err != nil {
		return ident.ID{}, invalid("instance_id", "%v", err)
	}
	return id, nil
}

// checkText checks that a text consists of at most limit bytes of printable UTF-8. It does not check the meaning,
// because another system interprets the text.
func checkText(field, text string, limit int) error {
	switch {
	case len(text) > limit:
		return invalid(field, "has %d bytes, at most %d are allowed", len(text), limit)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return unicode.IsControl(r) || r == unicode.ReplacementChar
	}):
		return invalid(field, "holds control characters or is not UTF-8")
	}
	return nil
}

func checkVars(vars map[string]string) error {
	if len(vars) > maxVars {
		return invalid("vars", "has %d entries, at most %d are allowed", len(vars), maxVars)
	}
	total := 0
	for name, value := range vars {
		if name == "" {
			return invalid("vars", "the name of a variable is empty")
		}
		if err := checkText("vars", name, maxText); err != nil {
			return err
		}
		if total += len(name) + len(value); total > maxVarsSize {
			return invalid("vars", "are more than %d bytes", maxVarsSize)
		}
	}
	return nil
}

// parsePatch checks the request of a change as far as possible without the shard's configuration.
func parsePatch(req *nstancev1.UpsertGroupRequest) (config.Patch, error) {
	if err := groupName("group", req.GetGroup()); err != nil {
		return config.Patch{}, err
	}
	if err := checkText("expected_etag", req.GetExpectedEtag(), maxText); err != nil {
		return config.Patch{}, err
	}
	if req.GetMustCreate() && (req.GetMustExist() || req.GetExpectedEtag() != "") {
		return config.Patch{}, invalid("must_create", "contradicts must_exist and expected_etag")
	}
	if req.GetPatch() == "" {
		return config.Patch{}, invalid("patch", `is empty: want a JSON object such as {"size": 3}. Clients of earlier `+
			"versions send none")
	}
	patch, problems := config.ParsePatch("", []byte(req.GetPatch()))
	if errs := problems.Errors(); len(errs) > 0 {
		return config.Patch{}, status.Error(codes.InvalidArgument, listed("patch", errs))
	}
	return patch, nil
}

// listed lists problems of a group, one per line. A problem of the whole group gets the given name.
func listed(whole string, found config.Problems) string {
	lines := make([]string, len(found))
	for i, p := range found {
		p.Path, p.Line, p.Col = cmp.Or(p.Path, whole), 0, 0
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

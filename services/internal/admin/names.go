package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	nstancev1 "github.com/nstance-kit/nstance/services/api/nstance/v1"
	"github.com/nstance-kit/nstance/services/contract/ident"
	"github.com/nstance-kit/nstance/services/contract/suggest"
	"github.com/nstance-kit/nstance/services/internal/admin/fleet"
)

// shownNames is the number of candidates that an error lists.
const shownNames = 10

// instanceHelp ends the help of commands that take an instance.
const instanceHelp = `INSTANCE is the instance's ID, the beginning or the end of it (three characters or more), or
its provider ID. Without --shard, the command looks in all shards.`

// resolve replaces the short names in a command line by full ones: TENANT/GROUP by the group's name, and a part of an
// instance's ID, or a provider ID, by the ID. It applies to the first argument if that is a group or an instance, and
// to the flags --group and --instance.
func (a *app) resolve(cmd *cobra.Command, args []string) error {
	var err error
	switch first := firstArgument(cmd); {
	case len(args) == 0:
	case first == "GROUP" || first == "[GROUP]":
		args[0], err = a.groupName(cmd, args[0])
	case first == "INSTANCE":
		args[0], err = a.instanceName(cmd, args[0], false)
	}
	replace := func(flag string, name func(string) (string, error)) {
		if text := flagText(cmd, flag); err == nil && text != "" {
			if text, err = name(text); err == nil {
				err = cmd.Flags().Set(flag, text)
			}
		}
	}
	replace("group", func(text string) (string, error) { return a.groupName(cmd, text) })
	replace("instance", func(text string) (string, error) { return a.instanceName(cmd, text, true) })
	return err
}

// scopeOf returns the scope that the flags of a command line select so far.
func scopeOf(cmd *cobra.Command) *scope {
	s := &scope{servers: flagText(cmd, "servers"), via: flagText(cmd, "via"),
		identityDir: flagText(cmd, "identity-dir"), shard: flagText(cmd, "shard"),
		all: flagText(cmd, "all-shards") == "true"}
	if _, ok := cmd.Annotations[readsOnly]; ok {
		s.reader = cmd
	}
	s.timeout, _ = cmd.Flags().GetDuration("request-timeout") // zero if the command has no such flag
	return s
}

// groupName returns the name of the group that a text names as GROUP or TENANT/GROUP. The tenant must be the
// identity's.
func (a *app) groupName(cmd *cobra.Command, text string) (string, error) {
	tenant, name, both := strings.Cut(text, "/")
	if !both {
		tenant, name = "default", text
	}
	if err := errors.Join(ident.ValidateTenantName(tenant), ident.ValidateName(name)); err != nil {
		return "", usageOf(cmd, fmt.Errorf("group: %w", err))
	}
	if !both {
		return name, nil
	}
	f, err := a.fleet(scopeOf(cmd))
	if err != nil {
		return "", err
	}
	defer f.Close()
	identity, err := f.Identity()
	if err != nil {
		return "", err
	}
	if own := identity.Who.Tenant; tenant != own {
		return "", &usageError{err: fmt.Errorf("group %s is of tenant %q, the identity in use is of tenant %q", text,
			tenant, own), hint: "choose an identity of that tenant with --identity-dir; nstance-admin cluster " +
			"register-operator --tenant makes one"}
	}
	return name, nil
}

// located is an instance that a shard knows.
type located struct{ shard, id, group, providerID string }

func (l located) String() string {
	return fmt.Sprintf("%s (group %s, shard %s)", l.id, l.group, l.shard)
}

// forms returns the texts that name the instance, apart from parts of its ID.
func (l located) forms() []string {
	return []string{l.id, l.providerID, l.providerID[strings.LastIndex(l.providerID, "/")+1:]}
}

// matches reports whether a text names the instance: it is the beginning or the end of the ID, both with "…" between
// them, or the provider ID or its last part.
func (l located) matches(text string) bool {
	if begin, end, both := strings.Cut(text, "…"); both {
		return strings.HasPrefix(l.id, begin) && strings.HasSuffix(l.id, end)
	}
	return strings.HasPrefix(l.id, text) || strings.HasSuffix(l.id, text) ||
		slices.ContainsFunc(l.forms(), func(form string) bool { return strings.EqualFold(form, text) })
}

// instanceName returns the ID of the instance that a text names, and selects the instance's shard. If the command line
// names no shard, it looks in all of them. A full ID is returned without a call. With past, instances of which only the
// journals know count too.
func (a *app) instanceName(cmd *cobra.Command, text string, past bool) (string, error) {
	s := scopeOf(cmd)
	if s.shard == "" {
		s.all = true
		_ = cmd.Flags().Set("all-shards", "true") // fails only if the command has no such flag
	}
	id, err := ident.ParseID(text)
	switch {
	case err == nil && id.Prefix() == ident.OperatorPrefix:
		return "", usageOf(cmd, fmt.Errorf("%s is an operator's ID", text))
	case err == nil:
		return text, nil
	case utf8.RuneCountInString(strings.ReplaceAll(text, "…", "")) < 3:
		return "", usageOf(cmd, fmt.Errorf("%q names no instance: give at least three characters of its ID", text))
	}
	f, shards, err := a.connect(s)
	if err != nil {
		return "", err
	}
	defer f.Close()
	known, err := a.knownInstances(cmd, f, shards)
	if err != nil {
		return "", err
	}
	lower := strings.ToLower(text)
	other := func(l located) bool { return !l.matches(lower) }
	found := slices.DeleteFunc(slices.Clone(known), other)
	if len(found) == 0 && past {
		found = slices.DeleteFunc(a.pastInstances(cmd, f, shards), other)
	}
	switch len(found) {
	case 0:
		return "", withHint(fmt.Errorf("no instance in %s has an ID that begins or ends with %q, or this provider ID",
			whom(shards), text), "%s", nearInstances(lower, known))
	case 1:
		_ = cmd.Flags().Set("shard", found[0].shard)
		_ = cmd.Flags().Set("all-shards", "false")
		return found[0].id, nil
	}
	hint := "give more characters of one of them:"
	for n, l := range found {
		if n == shownNames {
			hint += fmt.Sprintf("\n  and %d more", len(found)-n)
			break
		}
		hint += "\n  " + l.String()
	}
	return "", &usageError{err: fmt.Errorf("%q names %s", text, count(len(found), "instance")), hint: hint}
}

// knownInstances returns the instances of shards. An error says which shard did not answer.
func (a *app) knownInstances(cmd *cobra.Command, f *fleet.Fleet, shards []string) (known []located, err error) {
	answers := during(a, "looking for the instance in "+whom(shards), func() answers[*nstancev1.ListInstancesResponse] {
		return fleet.Call(cmd.Context(), f, shards, fleet.Client.ListInstances, &nstancev1.ListInstancesRequest{})
	})
	if failed := fleet.Failed(slices.DeleteFunc(slices.Clone(answers), func(answer fleet.Answer[*nstancev1.
		ListInstancesResponse]) bool {
		return answer.LastKnown != nil
	})); len(failed) > 0 {
		for _, e := range failed {
			e.Hint = strings.TrimPrefix(e.Hint+"; or give the whole ID, or another shard with --shard", "; ")
		}
		return nil, &shardsError{failed, len(answers)}
	}
	for _, answer := range answers {
		for _, i := range answer.Message.GetInstances() {
			known = append(known, located{answer.Shard, i.GetInstanceId(), i.GetGroup(), i.GetProviderId()})
		}
	}
	return known, nil
}

// pastInstances returns the instances that the journals of shards name.
func (a *app) pastInstances(cmd *cobra.Command, f *fleet.Fleet, shards []string) (past []located) {
	seen := map[string]bool{}
	for _, answer := range fleet.Call(cmd.Context(), f, shards, fleet.Client.ListEvents,
		&nstancev1.ListEventsRequest{}) {
		for _, e := range answer.Message.GetEvents() {
			if id := e.GetInstanceId(); id != "" && !seen[id] {
				seen[id] = true
				past = append(past, located{shard: answer.Shard, id: id, group: e.GetGroup()})
			}
		}
	}
	return past
}

// nearInstances is a hint with the instance that a text probably means.
func nearInstances(text string, known []located) string {
	byForm := map[string]located{}
	var forms []string
	for _, l := range known {
		n := min(len(text), len(l.id))
		for _, form := range append(l.forms(), l.id[:n], l.id[len(l.id)-n:]) {
			byForm[form] = l
			forms = append(forms, form)
		}
	}
	if near := suggest.Nearest(text, forms); near != "" {
		return "did you mean " + byForm[near].String() + "?"
	}
	return "nstance-admin instance list --all-shards lists the instances"
}

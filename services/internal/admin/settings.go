package admin

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nstance-kit/nstance/services/contract/contexts"
)

// precedence orders the places of a setting's value. A place with more precedence wins.
type precedence int

const (
	byDefault precedence = iota
	byContext
	byEnvironment
	byFlag
)

// settled is the value of a setting for one command.
type settled struct {
	contexts.Setting
	value string
	// from describes the place of the value. It is empty for a default.
	from       string
	precedence precedence
}

// settings returns the value of each setting that a command has, from its flags, the environment and the context.
func (a *app) settings(cmd *cobra.Command) ([]settled, error) {
	var found []settled
	var name string
	var saved contexts.Context
	at := map[string]precedence{} // by flag
	for _, setting := range contexts.Settings() {
		flag := cmd.Flag(setting.Flag)
		if flag == nil || flag.Annotations[notASetting] != nil {
			continue
		}
		if saved == nil {
			var err error
			if name, saved, err = a.currentContext(); err != nil {
				return nil, err
			}
		}
		one := settled{Setting: setting, value: flagValue(flag), from: "--" + setting.Flag, precedence: byFlag}
		switch variable, field := a.Getenv(setting.Variable()), saved[setting.Field()]; {
		case flag.Changed:
		case variable != "":
			one.value, one.from, one.precedence = variable, setting.Variable(), byEnvironment
		case field != "":
			one.value, one.from, one.precedence = a.atHome(field), "context "+name, byContext
		default:
			one.from, one.precedence = "", byDefault
		}
		if one.precedence < at[setting.Of] {
			one.value, one.from, one.precedence = flag.DefValue, "", byDefault
		}
		at[setting.Flag] = one.precedence
		found = append(found, one)
	}
	return found, nil
}

// saved returns the value that the environment or the context has for a setting, or "".
func (a *app) saved(flag string) (string, error) {
	scratch := new(cobra.Command)
	value := scratch.Flags().String(flag, "", "")
	err := a.settle(scratch)
	return *value, err
}

// settle gives the flags of a command that the command line does not set the values that the environment and the
// context have for them.
func (a *app) settle(cmd *cobra.Command) error {
	found, err := a.settings(cmd)
	if err != nil {
		return err
	}
	for _, one := range found {
		if one.precedence != byEnvironment && one.precedence != byContext {
			continue
		}
		set := cmd.Flag(one.Flag).Value.Set
		if many, ok := cmd.Flag(one.Flag).Value.(pflag.SliceValue); ok {
			set = func(text string) error { return many.Replace(strings.Split(text, ",")) }
		}
		if err := set(one.value); err != nil {
			return usagef("%s: %q: %w", one.from, one.value, err)
		}
	}
	return nil
}

// storageOf returns the bucket, the secrets store and the encryption key of a command that need not have the flags for
// them. It takes them from the flags that the command has, the environment and the context. The bucket is empty if none
// of them names one.
func (a *app) storageOf(cmd *cobra.Command) (*secretFlags, error) {
	s, scratch := new(secretFlags), new(cobra.Command)
	s.add(scratch)
	flags := scratch.Flags()
	flags.AddFlagSet(scratch.PersistentFlags())
	var err error
	flags.VisitAll(func(flag *pflag.Flag) {
		if given := cmd.Flag(flag.Name); given != nil && given.Changed && err == nil {
			err = flags.Set(flag.Name, flagValue(given))
		}
	})
	if err == nil {
		err = a.settle(scratch)
	}
	return s, err
}

// flagValue returns the value of a flag in the form in which a command line gives it.
func flagValue(flag *pflag.Flag) string {
	if many, ok := flag.Value.(pflag.SliceValue); ok {
		return strings.Join(many.GetSlice(), ",")
	}
	return flag.Value.String()
}

// atHome replaces a leading "~/" by the home directory. No shell does it in the file with the contexts.
func (a *app) atHome(path string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && a.Getenv("HOME") != "" {
		return filepath.Join(a.Getenv("HOME"), rest)
	}
	return path
}

// notASetting is an annotation of flags that have the name of a setting, but another meaning.
const notASetting = "nstance-not-a-setting"

// keepFromSettings marks a flag as [notASetting].
func keepFromSettings(cmd *cobra.Command, flag string) {
	_ = cmd.Flags().SetAnnotation(flag, notASetting, []string{}) // fails only if the command has no such flag
}

// describeSettings adds the name of its environment variable to the usage of each flag that is a setting.
func describeSettings(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		setting, ok := contexts.Find(flag.Name)
		if note := fmt.Sprintf(" (or %s)", setting.Variable()); ok && flag.Annotations[notASetting] == nil &&
			!strings.HasSuffix(flag.Usage, note) {
			flag.Usage += note
		}
	})
}

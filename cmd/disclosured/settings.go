package main

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// setting is one leaf of Config.
type setting struct {
	key   string // as participant.address
	typ   reflect.Type
	value reflect.Value // the default
	usage string        // its comment in config.go
}

func (s setting) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.key) }

const envPrefix = "DISCLOSURED_"

func (s setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

// settings lists the leaves of Config in the order of their declaration.
func settings() []setting {
	usages := settingUsages()
	var all []setting
	config := reflect.ValueOf(defaultConfig())
	for i := range config.NumField() {
		section, group := config.Type().Field(i), config.Field(i)
		for j := range group.NumField() {
			leaf := group.Type().Field(j)
			all = append(all, setting{
				key:   section.Tag.Get("koanf") + "." + leaf.Tag.Get("koanf"),
				typ:   leaf.Type,
				value: group.Field(j),
				usage: usages[group.Type().Name()+"."+leaf.Name],
			})
		}
	}
	return all
}

// configSource is config.go itself: its comments are the manual, and there is no second copy of them.
//
//go:embed config.go
var configSource string

// settingUsages reads the comment of each field, by "Type.Field".
func settingUsages() map[string]string {
	usages := map[string]string{}
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", configSource, parser.ParseComments)
	if err != nil {
		return usages // the compiler has read the same file: this can't happen
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if st, ok := spec.Type.(*ast.StructType); ok {
			for _, f := range st.Fields.List {
				for _, name := range f.Names {
					usages[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return usages
}

// addConfigFlags gives a command --config and a flag for each setting, or for each of those named and each of the sections named.
func addConfigFlags(flags *pflag.FlagSet, named ...string) {
	flags.String("config", "", "the YAML file to read settings from")
	flags.Lookup("config").Annotations = map[string][]string{settingFlag: nil}
	for _, s := range settings() {
		section, _, _ := strings.Cut(s.key, ".")
		if len(named) > 0 && !slices.Contains(named, section) && !slices.Contains(named, s.key) {
			continue
		}
		switch v := s.value.Interface().(type) {
		case string:
			flags.String(s.flag(), v, s.usage)
		case bool:
			flags.Bool(s.flag(), v, s.usage)
		case int:
			flags.Int(s.flag(), v, s.usage)
		case float64:
			flags.Float64(s.flag(), v, s.usage)
		case time.Duration:
			flags.Duration(s.flag(), v, s.usage)
		case []string:
			flags.StringSlice(s.flag(), v, s.usage)
		default:
			panic("config: a setting of a type without a flag: " + s.key)
		}
		flags.Lookup(s.flag()).Annotations = map[string][]string{settingFlag: {s.key}}
	}
}

// loadConfig reads the configuration: defaults, then the file, then the environment, then the flags that were given. It does
// not validate: see Config.validate.
func loadConfig(flags *pflag.FlagSet, environ []string) (Config, error) {
	k := koanf.New(".")
	defaults := map[string]any{}
	for _, s := range settings() {
		defaults[s.key] = s.value.Interface()
	}
	if err := k.Load(confmap.Provider(defaults, "."), nil); err != nil {
		return Config{}, fmt.Errorf("reading the defaults: %w", err)
	}
	path, err := flags.GetString("config")
	if err != nil {
		return Config{}, fmt.Errorf("reading --config: %w", err)
	}
	if path != "" {
		fromFile := koanf.New(".")
		if err := fromFile.Load(file.Provider(path), yaml.Parser()); err != nil {
			if strings.Contains(err.Error(), "cannot start any token") {
				err = fmt.Errorf("%w: is a line indented with a tab? YAML wants blanks", err)
			}
			return Config{}, fmt.Errorf("reading the configuration file %s: %w", path, err)
		}
		if err := unknownKeys(fromFile.All()); err != nil {
			return Config{}, fmt.Errorf("the configuration file %s: %w", path, err)
		}
		// Without a value a key would take its setting's default away: that is a line half written, or half commented out.
		for key, value := range fromFile.All() {
			if value == nil {
				return Config{}, fmt.Errorf("the configuration file %s: %s has no value: give it one, or leave the key out", path, key)
			}
		}
		if err := k.Merge(fromFile); err != nil {
			return Config{}, fmt.Errorf("reading the configuration file %s: %w", path, err)
		}
	}
	fromEnv, err := environmentSettings(environ)
	if err != nil {
		return Config{}, err
	}
	given := map[string]any{}
	for _, s := range settings() {
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			if list, ok := f.Value.(pflag.SliceValue); ok {
				given[s.key] = list.GetSlice()
			} else {
				given[s.key] = f.Value.String()
			}
		}
	}
	for _, layer := range []map[string]any{fromEnv, given} {
		if err := k.Load(confmap.Provider(layer, "."), nil); err != nil {
			return Config{}, fmt.Errorf("reading settings: %w", err)
		}
	}
	var config Config
	err = k.UnmarshalWithConf("", &config, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result:      &config,
		TagName:     "koanf",
		ErrorUnused: true,
		DecodeHook:  mapstructure.ComposeDecodeHookFunc(readScalar, splitList),
	}})
	if err != nil {
		return Config{}, fmt.Errorf("reading settings (`disclosured config --list` shows them all): %s", faultsOf(err))
	}
	return config, nil
}

// unknownKeys refuses keys that are no setting's, each with the setting that may be meant.
func unknownKeys(given map[string]any) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(given)) {
		known := slices.ContainsFunc(settings(), func(s setting) bool {
			// A section without settings comes as a key of its own, and what is below a setting is a value of the wrong type.
			return key == s.key || strings.HasPrefix(s.key, key+".") || strings.HasPrefix(key, s.key+".")
		})
		if known {
			continue
		}
		meant := ""
		if s := nearest(key); s != "" {
			meant = ": did you mean " + s + "?"
		}
		faults = append(faults, fmt.Errorf("%.80q is no setting (`disclosured config --list` shows them all)%s", key, meant))
	}
	return errors.Join(faults...)
}

// nearest is the setting whose name differs in the fewest letters, in three at most, "" if there is none.
func nearest(key string) string {
	best, least := "", 4
	for _, s := range settings() {
		if d := differingLetters(key, s.key); d < least {
			best, least = s.key, d
		}
	}
	return best
}

// differingLetters is the Levenshtein distance of two names.
func differingLetters(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// faultsOf is what a decoding error says about each setting, in one line.
func faultsOf(err error) string {
	lines := strings.Split(err.Error(), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.TrimSpace(line) == "" || strings.HasPrefix(line, "decoding failed")
	})
	return strings.Join(lines, "; ")
}

// readScalar reads a setting that is no list. Variables and flags give text, the file what its author wrote; what is not clearly
// of the setting's type is refused, because a guess would go unseen: 720 for a duration would be nanoseconds, 3.7 of something
// counted 3.
func readScalar(from, to reflect.Type, value any) (any, error) {
	text, isText := value.(string)
	if isText {
		text = strings.TrimSpace(text)
	}
	number := from.Kind() >= reflect.Int && from.Kind() <= reflect.Float64
	switch {
	case to == reflect.TypeFor[time.Duration]():
		if from == to || value == 0 {
			return value, nil
		}
		if d, err := time.ParseDuration(text); isText && err == nil {
			return d, nil
		}
		return nil, fmt.Errorf("%s is not a duration: give a number with its unit, as 500ms, 15s or 1h30m", quoted(value))
	case to.Kind() == reflect.Bool:
		if from == to {
			return value, nil
		}
		if b, err := strconv.ParseBool(text); isText && err == nil {
			return b, nil
		}
		return nil, fmt.Errorf("%s is neither true nor false", quoted(value))
	case to.Kind() == reflect.Int:
		if number {
			text = fmt.Sprint(value)
		}
		if n, err := strconv.Atoi(text); (isText || number) && err == nil {
			return n, nil
		}
		return nil, fmt.Errorf("%s is not a whole number", quoted(value))
	case to.Kind() == reflect.Float64:
		if number {
			text = fmt.Sprint(value)
		}
		if f, err := strconv.ParseFloat(text, 64); (isText || number) && err == nil {
			return f, nil
		}
		return nil, fmt.Errorf("%s is not a number", quoted(value))
	case to.Kind() == reflect.String && !isText:
		return nil, fmt.Errorf("%s is not text: put it in quotes", quoted(value))
	}
	return value, nil
}

// quoted is a value for an error: never all of a text that can be a secret in the wrong place.
func quoted(value any) string {
	switch reflect.ValueOf(value).Kind() {
	case reflect.Map, reflect.Slice:
		return "what is given"
	}
	return fmt.Sprintf("%.20q", fmt.Sprint(value))
}

// splitList reads a list given as one comma-separated string; the empty string is the empty list.
func splitList(from, to reflect.Type, value any) (any, error) {
	text, ok := value.(string)
	switch {
	case to.Kind() != reflect.Slice:
		return value, nil
	case !ok && from.Kind() != reflect.Slice:
		return nil, fmt.Errorf("%s is not a list", quoted(value))
	case !ok:
		return value, nil
	}
	list := []string{}
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			list = append(list, item)
		}
	}
	return list, nil
}

// environmentSettings reads the variables with our prefix. One that is no setting's is refused, so that a typing error does
// not go unseen.
func environmentSettings(environ []string) (map[string]any, error) {
	byName := map[string]string{}
	for _, s := range settings() {
		byName[s.env()] = s.key
	}
	values := map[string]any{}
	var unknown []error
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(otherVariables, name) {
			continue
		}
		key, ok := byName[name]
		if !ok {
			unknown = append(unknown, fmt.Errorf("the environment variable %s is no setting's: `disclosured config --list` shows them all", name))
			continue
		}
		values[key] = value
	}
	return values, errors.Join(unknown...)
}

// otherVariables have our prefix and are not settings of the service: they belong to the tests and the demo.
var otherVariables = []string{"DISCLOSURED_POSTGRES_BIN", "DISCLOSURED_TEST_DATABASE_URL", "DISCLOSURED_SOAK"}

// render prints the configuration as the YAML file that would give it.
func (c Config) render() string {
	var b strings.Builder
	config := reflect.ValueOf(c)
	for i := range config.NumField() {
		group := config.Field(i)
		fmt.Fprintf(&b, "%s:\n", config.Type().Field(i).Tag.Get("koanf"))
		for j := range group.NumField() {
			fmt.Fprintf(&b, "  %s: %s\n", group.Type().Field(j).Tag.Get("koanf"), yamlScalar(shown(group.Field(j).Interface())))
		}
	}
	return b.String()
}

// changes are the settings that are not the default's, in the order of their declaration, with their values.
func (c Config) changes() []setting {
	var changed []setting
	config := reflect.ValueOf(c)
	for _, s := range settings() {
		section, name, _ := strings.Cut(s.key, ".")
		value := fieldByKey(fieldByKey(config, section), name)
		if !reflect.DeepEqual(value.Interface(), s.value.Interface()) {
			s.value = value
			changed = append(changed, s)
		}
	}
	return changed
}

// fieldByKey is a struct's field that has the key.
func fieldByKey(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("koanf") == key {
			return v.Field(i)
		}
	}
	return reflect.Value{} // settings makes keys of these very tags
}

// renderChanges is the YAML file of the settings that are not the default's.
func (c Config) renderChanges() string {
	var b strings.Builder
	last := ""
	for _, s := range c.changes() {
		section, name, _ := strings.Cut(s.key, ".")
		if section != last {
			fmt.Fprintf(&b, "%s:\n", section)
			last = section
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, yamlScalar(shown(s.value.Interface())))
	}
	return b.String()
}

// renderEnvironment is the same as variables, one a line, without quotes: as an env_file of containers wants them.
func (c Config) renderEnvironment() string {
	var b strings.Builder
	for _, s := range c.changes() {
		value := shown(s.value.Interface())
		if list, ok := value.([]string); ok {
			value = strings.Join(list, ",")
		}
		fmt.Fprintf(&b, "%s=%v\n", s.env(), value)
	}
	return b.String()
}

// shown is a setting's value without a password that was put into a URL. Such a URL is refused, after it was printed.
func shown(v any) any {
	if text, ok := v.(string); ok && strings.Contains(text, "://") && holdsUser(text) {
		return "(not shown: it holds a password)"
	}
	return v
}

func yamlScalar(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case time.Duration:
		return v.String()
	case []string:
		quoted := make([]string, len(v))
		for i, s := range v {
			quoted[i] = strconv.Quote(s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	default:
		return fmt.Sprint(v)
	}
}

// configurationManual is docs/configuration.md: every setting, its names, its default and its meaning.
func configurationManual() string {
	var b strings.Builder
	b.WriteString("# Configuration\n\n" +
		"A setting can be given, from the strongest to the weakest, as a flag, as an environment variable, or in the YAML file that\n" +
		"`--config` names. Lists are comma-separated in flags and variables. A key that does not exist is refused. Secrets are never\n" +
		"settings: settings name the files that hold them. `disclosured config` prints what is in effect and checks it.\n\n" +
		"This page is made from the comments in `cmd/disclosured/config.go`.\n\n" +
		"| setting | flag | variable | default | meaning |\n|---|---|---|---|---|\n")
	for _, s := range settings() {
		fmt.Fprintf(&b, "| `%s` | `--%s` | `%s` | `%s` | %s |\n", s.key, s.flag(), s.env(), yamlScalar(s.value.Interface()), s.usage)
	}
	return b.String()
}

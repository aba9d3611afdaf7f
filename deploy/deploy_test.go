package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/knadh/koanf/parsers/yaml"

	"github.com/disclosured/disclosured/internal/index"
	"github.com/disclosured/disclosured/internal/telemetry"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func readYAML(t *testing.T, path string) map[string]any {
	t.Helper()
	content, err := yaml.Parser().Unmarshal([]byte(read(t, path)))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return content
}

// metric is one that the service has.
type metric struct {
	kind   string // counter, gauge, histogram
	labels []string
}

// metrics are the service's own, as the list that package telemetry's test holds to its registry has them, and the process's and the
// runtime's, as the registry gives them.
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	known := map[string]metric{}
	line := regexp.MustCompile(`^(\w+)\{([\w,]*)\} (\w+): `)
	for l := range strings.Lines(read(t, "../internal/telemetry/testdata/metrics.golden")) {
		parts := line.FindStringSubmatch(l)
		if parts == nil {
			t.Fatalf("the list of metrics has the line %q", l)
		}
		known[parts[1]] = metric{kind: parts[3], labels: strings.Split(parts[2], ",")}
	}
	families, err := telemetry.New("test").Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if name := f.GetName(); !strings.HasPrefix(name, "disclosured_") {
			known[name] = metric{kind: strings.ToLower(f.GetType().String())}
		} else if _, ok := known[name]; !ok {
			t.Errorf("the registry has %s, and the list of metrics does not", name)
		}
	}
	known["up"] = metric{kind: "gauge"} // Prometheus' own
	return known
}

var (
	selectorExpr = regexp.MustCompile(`\b((?:disclosured|go|process)_\w+|up)\b(?:\{([^}]*)\})?`)
	matcherExpr  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	quotedExpr   = regexp.MustCompile(`"[^"]*"`)
	byExpr       = regexp.MustCompile(`\bby \(([\w, ]*)\)`)
	namesExpr    = regexp.MustCompile(`__name__=~"([^"]*)"`)
	rateExpr     = regexp.MustCompile(`\b(?:rate|increase)\((\w+)`)
)

// checkExpression says what in a PromQL expression the service does not have, and gives the metrics that are in it.
func checkExpression(expr string, known map[string]metric) (used, faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	named := ""
	for _, names := range namesExpr.FindAllStringSubmatch(expr, -1) {
		named += " " + strings.ReplaceAll(names[1], "|", " ")
	}
	expr = quotedExpr.ReplaceAllString(expr, `""`) + named
	prometheus := []string{"instance", "job", "le", "__name__"}
	grouped := slices.Clone(prometheus)
	for _, s := range selectorExpr.FindAllStringSubmatch(expr, -1) {
		name := strings.TrimSuffix(s[1], "_bucket")
		m, ok := known[name]
		if !ok || (name != s[1]) != (m.kind == "histogram") {
			fault("the service has no metric %s", s[1])
			continue
		}
		used = append(used, name)
		grouped = append(grouped, m.labels...)
		for _, l := range matcherExpr.FindAllStringSubmatch(s[2], -1) {
			if !slices.Contains(m.labels, l[1]) && !slices.Contains(prometheus, l[1]) {
				fault("%s has no label %s", name, l[1])
			}
		}
	}
	for _, by := range byExpr.FindAllStringSubmatch(expr, -1) {
		for _, l := range fields(by[1]) {
			if !slices.Contains(grouped, l) {
				fault("groups by %s, which no metric in it has", l)
			}
		}
	}
	for _, r := range rateExpr.FindAllStringSubmatch(expr, -1) {
		if m := known[strings.TrimSuffix(r[1], "_bucket")]; m.kind != "counter" && m.kind != "histogram" {
			fault("%s does not only grow", r[1])
		}
	}
	return used, faults
}

// fields are the names in a list with commas.
func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func TestExpressionsAreChecked(t *testing.T) {
	known := map[string]metric{
		"disclosured_a_total": {kind: "counter", labels: []string{"kind"}}, "disclosured_b": {kind: "gauge"},
		"disclosured_c_seconds": {kind: "histogram", labels: []string{"method"}},
	}
	for expr, want := range map[string]string{
		`sum by (kind, instance) (rate(disclosured_a_total{kind!="x", instance=~"$instance"}[5m]))`:                  "disclosured_a_total",
		`histogram_quantile(0.5, sum by (le, method) (rate(disclosured_c_seconds_bucket{job="{kind=}"}[1m]))) > 0.1`: "disclosured_c_seconds",
		`disclosured_b / disclosured_b`:                             "disclosured_b,disclosured_b",
		`rate({__name__=~"disclosured_a_total|disclosured_b"}[5m])`: "disclosured_a_total,disclosured_b",
		`sum by (instance) (increase(disclosured_a_total[5m]))`:     "disclosured_a_total",
	} {
		used, faults := checkExpression(expr, known)
		if got := strings.Join(used, ","); got != want || len(faults) > 0 {
			t.Errorf("%s uses %s, want %s; faults %q", expr, got, want, faults)
		}
	}
	for _, wrong := range []string{
		`disclosured_d`, `disclosured_c_seconds`, `disclosured_b_bucket`, `disclosured_b{kind="x"}`, `sum by (method) (disclosured_b)`,
		`rate(disclosured_b[5m])`, `rate({__name__=~"disclosured_a_total|disclosured_x"}[5m])`,
	} {
		if _, faults := checkExpression(wrong, known); len(faults) == 0 {
			t.Errorf("%s passes", wrong)
		}
	}
}

// dashboard is as much of Grafana's form as is looked at.
type dashboard struct {
	UID        string
	Templating struct{ List []struct{ Name string } }
	Panels     []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

// Each panel shows what the service has, and what it has is shown.
func TestDashboard(t *testing.T) {
	known := metrics(t)
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "grafana/dashboards/disclosured.json")), &d); err != nil {
		t.Fatal(err)
	}
	ids, cells, shown := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	variables := regexp.MustCompile(`\$\{?(\w+)`)
	legend := regexp.MustCompile(`\{\{(\w+)\}\}`)
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken || x >= 24 {
					t.Errorf("%s lies over %s or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if (p.Type == "row") != (len(p.Targets) == 0) {
			t.Errorf("%s is a %s with %d queries", p.Title, p.Type, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			where := fmt.Sprintf("%s %s", p.Title, target.RefID)
			if refs[target.RefID] {
				t.Errorf("%s: two queries of one name", where)
			}
			refs[target.RefID] = true
			used, faults := checkExpression(target.Expr, known)
			for _, f := range faults {
				t.Errorf("%s: %s", where, f)
			}
			labels := []string{"instance"}
			for _, name := range used {
				shown[name] = true
				labels = append(labels, known[name].labels...)
			}
			for _, l := range legend.FindAllStringSubmatch(target.LegendFormat, -1) {
				by := byExpr.FindStringSubmatch(target.Expr)
				if !slices.Contains(labels, l[1]) || by != nil && !slices.Contains(fields(by[1]), l[1]) {
					t.Errorf("%s: the legend names %s, which its series do not have", where, l[1])
				}
			}
			for _, v := range variables.FindAllStringSubmatch(target.Expr, -1) {
				if v[1] != "__rate_interval" && v[1] != "instance" {
					t.Errorf("%s: uses the variable %s", where, v[1])
				}
			}
		}
	}
	for name := range known {
		if strings.HasPrefix(name, "disclosured_") && !shown[name] {
			t.Errorf("%s is on no panel", name)
		}
	}
	if compose := read(t, "../docker-compose.yml"); !strings.Contains(compose, "/dashboards/disclosured.json") {
		t.Error("docker-compose.yml does not show this dashboard first")
	}
}

// rules are the alerts by name.
func rules(t *testing.T) map[string]map[string]any {
	t.Helper()
	found := map[string]map[string]any{}
	groups, _ := readYAML(t, "prometheus/alerts.yml")["groups"].([]any)
	for _, group := range groups {
		list, _ := group.(map[string]any)["rules"].([]any)
		for _, r := range list {
			rule, _ := r.(map[string]any)
			found[fmt.Sprint(rule["alert"])] = rule
		}
	}
	if len(found) < 10 {
		t.Fatalf("%d alerts found", len(found))
	}
	return found
}

// Each alert asks for what the service has, says what is wrong and what to do, and is seen to fire by the rules' own test.
func TestAlerts(t *testing.T) {
	known := metrics(t)
	tests := read(t, "prometheus/alerts_test.yml")
	for name, rule := range rules(t) {
		_, faults := checkExpression(fmt.Sprint(rule["expr"]), known)
		for _, f := range faults {
			t.Errorf("%s: %s", name, f)
		}
		annotations, _ := rule["annotations"].(map[string]any)
		labels, _ := rule["labels"].(map[string]any)
		if annotations["summary"] == nil || annotations["description"] == nil {
			t.Errorf("%s says not what is wrong or not what to do", name)
		}
		if s := labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s is of severity %v", name, s)
		}
		if !regexp.MustCompile(`alertname: ` + name + `\n\s+exp_alerts: \[\{`).MatchString(tests) {
			t.Errorf("%s: alerts_test.yml does not show it fire", name)
		}
	}
	// What wakes an operator is what `disclosured audit` calls a finding.
	var expected []string
	for _, kind := range index.FindingKinds {
		if !kind.Serious() {
			expected = append(expected, string(kind))
		}
	}
	if expr, want := fmt.Sprint(rules(t)["DisclosuredFinding"]["expr"]), `kind!~"`+strings.Join(expected, "|")+`"`; !strings.Contains(expr, want) {
		t.Errorf("the alert on findings is %s, want %s in it", expr, want)
	}
}

// What is set for the service in the compose file and in the example is a setting of it.
func TestSettingsExist(t *testing.T) {
	manual := read(t, "../docs/configuration.md")
	compose := read(t, "../docker-compose.yml")
	for _, v := range regexp.MustCompile(`\bDISCLOSURED_\w+`).FindAllString(compose, -1) {
		if !strings.Contains(manual, "`"+v+"`") {
			t.Errorf("docker-compose.yml sets %s, which is no setting", v)
		}
	}
	for section, settings := range readYAML(t, "own.example.yaml") {
		for name := range settings.(map[string]any) {
			if !strings.Contains(manual, "`"+section+"."+name+"`") {
				t.Errorf("own.example.yaml has %s.%s, which is no setting", section, name)
			}
		}
	}
}

// What is mounted from the tree is in it, but the secrets and settings, which are the user's, and which deploy/make-secrets makes.
func TestComposeFindsItsFiles(t *testing.T) {
	makes := read(t, "make-secrets")
	for _, path := range regexp.MustCompile(`\./deploy/[\w./-]+`).FindAllString(read(t, "../docker-compose.yml"), -1) {
		name, secret := strings.CutPrefix(path, "./deploy/secrets/")
		switch {
		case secret:
			if !strings.Contains(makes, "\nkeep "+name+" ") {
				t.Errorf("%s is made by nobody", path)
			}
		case path == "./deploy/own.yaml":
		default:
			if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(path))); err != nil {
				t.Error(err)
			}
		}
	}
}

// The image's build gets each folder of this repository that the program's packages are in, and the Go that go.mod asks for at least.
func TestImageHasWhatTheProgramNeeds(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", "./cmd/disclosured")
	cmd.Dir = ".."
	listed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	dockerfile, ignored := read(t, "../Dockerfile"), read(t, "../.dockerignore")
	const module = "github.com/disclosured/disclosured/"
	tops := map[string]bool{}
	for path := range strings.Lines(string(listed)) {
		if inside, ok := strings.CutPrefix(strings.TrimSpace(path), module); ok {
			top, _, _ := strings.Cut(inside, "/")
			tops[top] = true
		}
	}
	for top := range tops {
		if !strings.Contains(dockerfile, "\nCOPY "+top+" "+top+"\n") || !strings.Contains(ignored, "\n!"+top+"\n") {
			t.Errorf("%s is not copied by the Dockerfile, or left out by .dockerignore", top)
		}
	}
	for _, copied := range regexp.MustCompile(`\nCOPY (\w+) `).FindAllStringSubmatch(dockerfile, -1) {
		if !tops[copied[1]] {
			t.Errorf("the Dockerfile copies %s, which the program does not need", copied[1])
		}
	}
	wanted := regexp.MustCompile(`\ngo 1\.(\d+)`).FindStringSubmatch(read(t, "../go.mod"))
	have := regexp.MustCompile(`golang:1\.(\d+)\.\d+-`).FindStringSubmatch(dockerfile)
	if wanted == nil || have == nil || wanted[1] != have[1] {
		t.Errorf("go.mod wants Go 1.%v, the Dockerfile builds with 1.%v", wanted, have)
	}
}

// The service's process may open as many files as docs/deploy.md says that its defaults need, and as it says that the compose file allows.
func TestComposeAllowsFiles(t *testing.T) {
	guide := read(t, "../docs/deploy.md")
	allowed := regexp.MustCompile(`\n    nofile: (\d+)\n`).FindStringSubmatch(read(t, "../docker-compose.yml"))
	if allowed == nil || !strings.Contains(guide, "The compose file allows "+allowed[1]+" ") || !strings.Contains(guide, "`LimitNOFILE="+allowed[1]+"`") {
		t.Errorf("the compose file allows %v files, and docs/deploy.md says otherwise", allowed)
	}
}

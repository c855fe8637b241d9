package deploy_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	promql "github.com/prometheus/prometheus/promql/parser"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// metrics are those that the daemon registers.
func metrics(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	source := string(read(t, "../internal/daemon/metrics.go"))
	for _, m := range regexp.MustCompile(`\b(counter|gauge|histogram)\("([a-z_]+)"`).FindAllStringSubmatch(source, -1) {
		name := "semel_" + m[2]
		names[name] = true
		if m[1] == "histogram" {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				names[name+part] = true
			}
		}
	}
	if len(names) < 15 {
		t.Fatalf("only %d metrics were found", len(names))
	}
	return names
}

var labels = []string{"route", "topic", "partition", "outcome", "class", "state", "le", "version", "commit", "go"}

// query reads an expression, and looks at the names in it.
func query(t *testing.T, where, text string, known map[string]bool) {
	t.Helper()
	expr, err := promql.NewParser(promql.Options{}).ParseExpr(text)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	label := func(name string) {
		if name != model.MetricNameLabel && !slices.Contains(labels, name) {
			t.Errorf("%s: no metric has a label %q", where, name)
		}
	}
	seen := 0
	promql.Inspect(expr, func(n promql.Node, _ []promql.Node) error {
		switch n := n.(type) {
		case *promql.VectorSelector:
			if seen++; !known[n.Name] {
				t.Errorf("%s: there is no metric %q", where, n.Name)
			}
			for _, m := range n.LabelMatchers {
				label(m.Name)
			}
		case *promql.AggregateExpr:
			for _, name := range n.Grouping {
				label(name)
			}
		case *promql.BinaryExpr:
			if n.VectorMatching != nil {
				for _, name := range n.VectorMatching.MatchingLabels {
					label(name)
				}
			}
		}
		return nil
	})
	if seen == 0 {
		t.Errorf("%s asks for no metric", where)
	}
}

func TestRulesAreReadAndNameWhatThereIs(t *testing.T) {
	t.Parallel()
	groups, errs := rulefmt.Parse(read(t, "prometheus/semel.rules.yaml"), false, model.UTF8Validation, promql.NewParser(promql.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	known, rules := metrics(t), 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			rules++
			query(t, r.Alert, r.Expr, known)
			for _, what := range []string{r.Annotations["summary"], r.Annotations["description"], r.Labels["severity"]} {
				if what == "" {
					t.Errorf("%s: summary, description or severity is missing", r.Alert)
				}
			}
		}
	}
	if rules < 5 {
		t.Errorf("only %d rules", rules)
	}
}

// docs/operate.md says what to alert on; the rules do so.
func TestEveryMetricToAlertOnHasARule(t *testing.T) {
	t.Parallel()
	rules := string(read(t, "prometheus/semel.rules.yaml"))
	_, table, _ := strings.Cut(string(read(t, "../docs/operate.md")), "## What to alert on")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, name := range regexp.MustCompile(`semel_[a-z_]+`).FindAllString(table, -1) {
		if !strings.Contains(rules, name) {
			t.Errorf("no rule asks for %s", name)
		}
	}
}

type panel struct {
	ID      int
	Title   string
	Type    string
	GridPos struct{ X, Y, W, H int }
	Targets []struct{ RefID, Expr, LegendFormat string }
}

func TestBoardAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	var board struct {
		UID, Title    string
		SchemaVersion int
		Panels        []panel
		Templating    struct{ List []struct{ Name, Type string } }
	}
	text := read(t, "grafana/semel.json")
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || board.Title == "" || board.SchemaVersion == 0 || len(board.Panels) < 8 {
		t.Errorf("%+v", board)
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$route", ".+")
	known, asked := metrics(t), ""
	ids := map[int]bool{}
	for i, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q: %+v", p.Title, p)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			asked += q.Expr
			query(t, p.Title, variables.Replace(q.Expr), known)
			for _, m := range regexp.MustCompile(`\{\{(.*?)\}\}`).FindAllStringSubmatch(q.LegendFormat, -1) {
				if !strings.Contains(q.Expr, m[1]) {
					t.Errorf("panel %q: its legend names %q, which its query takes away", p.Title, m[1])
				}
			}
		}
		for _, o := range board.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q lie over each other", p.Title, o.Title)
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q is too wide", p.Title)
		}
	}
	for _, v := range regexp.MustCompile(`\$\{?([a-z]+)\}?`).FindAllStringSubmatch(string(text), -1) {
		found := false
		for _, l := range board.Templating.List {
			found = found || l.Name == v[1]
		}
		if !found {
			t.Errorf("variable %s is not defined", v[0])
		}
	}
	for name := range known {
		if base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count"); !strings.Contains(asked, base) {
			t.Logf("the board doesn't show %s", name)
		}
	}
}

func TestDockerfileMakesAStaticBinaryForNobody(t *testing.T) {
	t.Parallel()
	file, err := parser.Parse(bytes.NewReader(read(t, "Dockerfile")))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings {
		t.Errorf("%s: %s", w.Short, w.Detail)
	}
	warned := func(rule, _, _, msg string, _ []parser.Range) { t.Errorf("%s: %s", rule, msg) }
	stages, _, err := instructions.Parse(file.AST, linter.New(&linter.Config{Warn: warned}))
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 {
		t.Fatalf("%d stages", len(stages))
	}
	static := false
	for _, c := range stages[0].Commands {
		switch c := c.(type) {
		case *instructions.EnvCommand:
			for _, kv := range c.Env {
				static = static || kv.Key == "CGO_ENABLED" && kv.Value == "0"
			}
		case *instructions.CopyCommand:
			for _, path := range c.SourcePaths {
				if _, err := os.Stat(filepath.Join("..", path)); err != nil {
					t.Error(err)
				}
			}
		case *instructions.RunCommand:
			if strings.Contains(strings.Join(c.CmdLine, " "), "go build") && !static {
				t.Error("cgo is on when it builds")
			}
		}
	}
	wants := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(read(t, "../go.mod")))[1]
	if from := stages[0].BaseName; from != "golang:"+wants {
		t.Errorf("it builds in %s, go.mod wants %s", from, wants)
	}
	user, entry := "", []string(nil)
	for _, c := range stages[1].Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.EntrypointCommand:
			if entry = c.CmdLine; c.PrependShell {
				t.Error("a shell would not hand on SIGTERM")
			}
		case *instructions.RunCommand:
			t.Error("there is nothing to run in the last stage: no shell")
		}
	}
	if user == "" || strings.HasPrefix(user, "0") || user == "root" || !strings.Contains(stages[1].BaseName, "static") || len(entry) != 1 {
		t.Errorf("user %q, base %s, entry %v", user, stages[1].BaseName, entry)
	}
}

// directives that the unit may use; systemd would ignore another, with a word in the
// journal.
var directives = map[string][]string{
	"Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
	"Service": {
		"Type", "ExecStart", "ExecReload", "Environment", "EnvironmentFile", "Restart", "RestartSec", "RestartPreventExitStatus", "KillSignal",
		"TimeoutStopSec", "LimitNOFILE", "DynamicUser", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices",
		"ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "RestrictAddressFamilies", "RestrictNamespaces",
		"LockPersonality", "MemoryDenyWriteExecute", "SystemCallArchitectures", "CapabilityBoundingSet",
	},
	"Install": {"WantedBy"},
}

func TestUnitStopsWithinItsTime(t *testing.T) {
	t.Parallel()
	text := read(t, "systemd/semel.service")
	options, err := unit.DeserializeOptions(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	service := map[string]string{}
	for _, o := range options {
		if !slices.Contains(directives[o.Section], o.Name) {
			t.Errorf("[%s] %s=: no such directive", o.Section, o.Name)
		}
		if o.Section == "Service" {
			service[o.Name] = o.Value
		}
	}
	const grace = 25 * time.Second // shutdown_grace, by default
	if stop, err := time.ParseDuration(service["TimeoutStopSec"]); err != nil || stop <= grace {
		t.Errorf("TimeoutStopSec %v, %v: it would be killed inside shutdown_grace", stop, err)
	}
	if service["ExecStart"] != "/usr/bin/semel run" || service["Type"] != "exec" || service["RestartPreventExitStatus"] != "2" || service["KillSignal"] != "SIGTERM" {
		t.Errorf("%v", service)
	}

	// where there is a systemd, it reads the unit itself
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	file := filepath.Join(t.TempDir(), "semel.service")
	there := bytes.ReplaceAll(text, []byte("/usr/bin/semel run"), []byte("/bin/true run"))
	if err := os.WriteFile(file, there, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(verify, "verify", file).CombinedOutput(); err != nil || strings.Contains(string(out), "semel.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

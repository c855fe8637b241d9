package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/demo"
	"github.com/semelhq/semel/internal/testenv"
)

// TestMain is the tests, or a consumer's process.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "demo-worker" {
		if err := demo.Work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

// run shows it without a terminal, and answers verdict and output.
func run(t *testing.T, cfg demo.Config) (*demo.Verdict, string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cfg.Worker, cfg.Out, cfg.Seed, cfg.Rate = []string{self, "demo-worker"}, &out, 7, 400
	v, err := demo.Run(ctx, cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	t.Cleanup(func() {
		if testing.Verbose() || t.Failed() {
			t.Log(out.String())
		}
	})
	return v, out.String()
}

func find(v *demo.Verdict, k demo.Kind) demo.Finding {
	for _, f := range v.Consumers {
		if f.Kind == k {
			return f
		}
	}
	return demo.Finding{}
}

func TestSemelIsExactUnderKillsAndRepeatsAndTheRivalsAreNot(t *testing.T) {
	t.Parallel()
	v, out := run(t, demo.Config{For: 8 * time.Second, Repeats: 0.1, Kills: true, JSON: true})

	semel, acks, forgets := find(v, demo.Semel), find(v, demo.AcksFirst), find(v, demo.NoMemory)
	if !v.Exact || !semel.Exact || semel.Lost+semel.Repeated+semel.Redone != 0 {
		t.Errorf("semel is not exact: %+v", semel)
	}
	if v.Repeats == 0 || semel.Duplicate != v.Repeats {
		t.Errorf("the inbox refused %d of %d repeats", semel.Duplicate, v.Repeats)
	}
	if semel.Redelivered == 0 { // the first kill falls there
		t.Error("the kill between COMMIT and ack left nothing for the watermark to refuse")
	}
	for _, f := range v.Consumers {
		if f.Kills == 0 {
			t.Errorf("%s was not killed", f.Kind)
		}
		if f.Back == 0 || f.Back > 3 {
			t.Errorf("%s took %g s from a kill to the next commit", f.Kind, f.Back)
		}
	}
	if acks.Lost == 0 {
		t.Errorf("acks first lost nothing: %+v", acks)
	}
	if forgets.Redone == 0 || forgets.Lost != 0 {
		t.Errorf("no memory did nothing twice, or lost something: %+v", forgets)
	}
	if acks.Repeated == 0 || forgets.Repeated == 0 {
		t.Error("repeats by the producer did not take effect twice at the rivals")
	}
	if acks.Exact || forgets.Exact || acks.Wrong == 0 || forgets.Wrong == 0 {
		t.Error("a rival's balances are right")
	}

	events := map[string]int{}
	for line := range strings.Lines(out) {
		var o struct{ Event string }
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("not a JSON object: %v: %s", err, line)
		}
		events[o.Event]++
	}
	for _, e := range []string{"starting", "started", "progress", "kill", "back"} {
		if events[e] == 0 {
			t.Errorf("no event %q: %v", e, events)
		}
	}
	if last := lastLine(out); !strings.HasPrefix(last, `{"event":"verdict"`) || events["verdict"] != 1 {
		t.Errorf("the last line is not the verdict: %s", last)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

func TestWithoutKillsAndRepeatsAllThreeAreExact(t *testing.T) {
	t.Parallel()
	v, out := run(t, demo.Config{Messages: 1500})
	if v.Messages != 1500 || v.Repeats != 0 {
		t.Errorf("%d messages and %d repeats", v.Messages, v.Repeats)
	}
	for _, f := range v.Consumers {
		if !f.Exact || f.Lost+f.Repeated+f.Redone+f.Kills != 0 || f.Once != 1500 {
			t.Errorf("%s is not exact: %+v", f.Kind, f)
		}
	}
	if !v.Exact || !v.Equation.Holds {
		t.Errorf("the verdict is no: %+v", v)
	}
	if strings.Contains(out, "\x1b") {
		t.Error("there are escapes in what is no terminal")
	}
}

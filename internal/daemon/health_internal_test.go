package daemon

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// served starts the server for a test and answers a way to ask it.
func served(t *testing.T, b *board, m *metrics) func(path string) (int, string) {
	t.Helper()
	s, err := listen("127.0.0.1:0", nil, b.standings, m.handler())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func(path string) (int, string) {
		req, err := http.NewRequest("GET", "http://"+s.listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
}

func TestHealthTellsTheTruth(t *testing.T) {
	t.Parallel()
	b := newBoard(time.Now, nil)
	b.add("orders", 1)
	b.add("payments", 1)
	ask := served(t, b, newMetrics(Build{}))

	if code, _ := ask("/readyz"); code != 503 {
		t.Errorf("starting: readyz says %d", code)
	}
	b.set("orders", 0, Running, "")
	b.set("payments", 0, Paused, "stocktaking")
	if code, _ := ask("/readyz"); code != 200 {
		t.Errorf("running and paused: readyz says %d", code)
	}
	if code, text := ask("/health?verbose"); code != 200 || !strings.Contains(text, "payments: paused since ") || !strings.Contains(text, "stocktaking") {
		t.Errorf("health: %d %q", code, text)
	}
	b.set("payments", 0, Halted, "no such column")
	code, text := ask("/health")
	if code != 503 || !strings.HasPrefix(text, "payments: halted since ") || strings.Contains(text, "orders") {
		t.Errorf("one halted: %d %q", code, text)
	}
	if code, _ := ask("/livez"); code != 200 {
		t.Errorf("livez says %d", code)
	}
}

func TestMetricsCarryTheNamesOfTheContract(t *testing.T) {
	t.Parallel()
	b := newBoard(time.Now, nil)
	m := newMetrics(Build{Version: "v1", Commit: "c", Go: "go"})
	b.add("orders", 1)
	ask := served(t, b, m)

	o := m.observe("orders", func() time.Time { return time.Unix(100, 0) })
	p := semel.Partition{Topic: "t", Number: 3}
	var a inbox.Accounts
	a.Outcome[inbox.Applied].Count = 7
	a.Outcome[inbox.Dead].Count = 1
	o.Settled(p, a)
	o.Moved(inbox.Mark{Partition: p, Next: 8}, 12, time.Unix(90, 0))
	o.Redelivered(p, 2)
	o.Lost(p, 5)
	o.Collision(p)
	o.Error(inbox.ClassConflict, nil)
	o.Fenced(inbox.Mismatch{Partition: p})
	o.Batch(8, time.Second)
	m.standing(Standing{Route: "orders", State: Running})

	_, text := ask("/metrics")
	at := `route="orders",topic="t"`
	for _, want := range []string{
		`semel_settled_total{outcome="applied",partition="3",` + at + `} 7`,
		`semel_settled_total{outcome="dead",partition="3",` + at + `} 1`,
		`semel_lag_messages{partition="3",` + at + `} 4`,
		`semel_lag_seconds{partition="3",` + at + `} 10`,
		`semel_redelivered_total{partition="3",` + at + `} 2`,
		`semel_lost_total{partition="3",` + at + `} 5`,
		`semel_collisions_total{partition="3",` + at + `} 1`,
		`semel_errors_total{class="conflict",route="orders"} 1`,
		`semel_fenced_total{partition="3",` + at + `} 1`,
		`semel_batch_messages_sum{route="orders"} 8`,
		`semel_last_commit_timestamp_seconds{route="orders"} 100`,
		`semel_route_state{route="orders",state="running"} 1`,
		`semel_route_state{route="orders",state="halted"} 0`,
		`semel_build_info{commit="c",go="go",version="v1"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no line %s", want)
		}
	}
	o.Dropped(p)
	if _, text := ask("/metrics"); strings.Contains(text, "semel_lag_messages{") {
		t.Error("a partition that is no longer ours still has a lag")
	}
}

// increase() sees nothing of what a series begins with.
func TestTheCountOfLostMessagesBeginsAtZero(t *testing.T) {
	t.Parallel()
	b := newBoard(time.Now, nil)
	m := newMetrics(Build{})
	ask := served(t, b, m)
	o := m.observe("orders", time.Now)
	p := semel.Partition{Topic: "t", Number: 3}
	var r inbox.Row
	r.Partition = p
	line := `semel_lost_total{partition="3",route="orders",topic="t"} `
	o.Claimed(r)
	if _, text := ask("/metrics"); !strings.Contains(text, line+"0\n") {
		t.Error("a partition that was claimed has no count")
	}
	o.Lost(p, 2)
	o.Claimed(r)
	if _, text := ask("/metrics"); !strings.Contains(text, line+"2\n") {
		t.Error("the count is not what was lost")
	}
}

func TestTokenOpensAllButTheAnswersOfProbes(t *testing.T) {
	t.Parallel()
	b := newBoard(time.Now, nil)
	b.add("orders", 1)
	token, broken := "", false
	s, err := listen("127.0.0.1:0", func() (string, error) {
		if broken {
			return "", io.ErrUnexpectedEOF
		}
		return token, nil
	}, b.standings, newMetrics(Build{}).handler())
	if err != nil {
		t.Fatal(err)
	}
	defer s.listener.Close()
	ask := func(path, header string) (int, string) {
		r := httptest.NewRequest("GET", path, nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		w := httptest.NewRecorder()
		s.http.Handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		path, token, header string
		broken              bool
		want                int
		says                string
	}{
		{"/livez", "t", "", false, 200, "ok"},
		{"/readyz", "t", "", false, 503, "not ready"},
		{"/readyz", "t", "Bearer t", false, 503, "orders: starting"},
		{"/health", "t", "", false, 401, "server.token is needed"},
		{"/health", "t", "Bearer u", false, 401, ""},
		{"/health", "t", "Basic t", false, 401, ""},
		{"/health?verbose", "t", "Bearer t", false, 200, "orders: starting"},
		{"/metrics", "t", "Bearer ", false, 401, ""},
		{"/metrics", "t", "Bearer t", false, 200, "semel_build_info"},
		{"/metrics", "changed", "Bearer t", false, 401, ""},
		{"/metrics", "", "Bearer ", false, 401, ""},
		{"/metrics", "t", "Bearer t", true, 401, ""},
		{"/metrics", "", "Bearer ", true, 401, ""},
	} {
		token, broken = c.token, c.broken
		code, text := ask(c.path, c.header)
		if code != c.want || !strings.Contains(text, c.says) {
			t.Errorf("%+v: %d %s", c, code, text)
		}
		if code == 503 && c.header == "" && strings.Contains(text, "orders") {
			t.Errorf("%+v: names a route", c)
		}
	}
}

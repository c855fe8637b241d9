package realdata_test

import (
	"context"
	"encoding/json"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semelhq/semel/internal/testenv"
)

const webhookRoute = `
  - name: webhooks
    consumer: TOPIC
    from: {topics: [TOPIC], instance_id: station}
    id: {header: message-id}
    to:
      table: webhooks
      write: insert
      columns:
        id: headers["message-id"]
        event: value.event
        payload: value.payload
    batch: {messages: 4}
`

// Every webhook is in the table once, under the ID that it was sent with; its
// payload is the file's as JSON, numbers exact.
func TestRealDataWebhooksAreInTheirTableOnce(t *testing.T) {
	t.Parallel()
	s := newStation(t, "CREATE TABLE webhooks (id uuid PRIMARY KEY, event text NOT NULL, payload jsonb NOT NULL)", webhookRoute, "webhooks")
	file := input("github-webhooks.jsonl.gz")
	s.send(file, "--create", "2", "--new-id", "--repeat", "0.2", "--seed", "3")
	s.settle(4, 0)

	count, want := expected(t, "webhooks", file)
	if s.sent.Lines != count || s.sent.Repeats == 0 {
		t.Errorf("sent %+v of %d lines, a fifth again", s.sent, count)
	}
	sent := s.sentIDs()
	var lines [][]byte
	for _, row := range s.rows("SELECT id, to_json(event), payload FROM webhooks") {
		line := canonical(t, []byte(*row[1])) + "\t" + canonical(t, []byte(*row[2]))
		if sent[*row[0]] != line {
			t.Errorf("the row %s is not what was sent under this ID", *row[0])
		}
		lines = append(lines, []byte(line))
	}
	if got := digest(lines); int64(len(lines)) != count || got != want {
		t.Errorf("%d rows of digest %s, want %d of %s", len(lines), got, count, want)
	} else {
		t.Logf("%d rows of digest %s, as in the file", count, got)
	}
	if got, want := s.audit()["webhooks"], map[string]int64{"applied": count, "duplicate": s.sent.Repeats}; !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// sentIDs reads the topic as a stranger: the line that each ID was sent with.
func (s *station) sentIDs() map[string]string {
	s.t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(testenv.Brokers(s.t)...), kgo.ConsumeTopics(s.topic))
	if err != nil {
		s.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	lines := map[string]string{}
	for left := s.sent.Sent; left > 0; {
		fs := cl.PollFetches(ctx)
		if err := fs.Err0(); err != nil {
			s.t.Fatal(err)
		}
		fs.EachRecord(func(r *kgo.Record) {
			left--
			var m struct{ Event, Payload json.RawMessage }
			if err := json.Unmarshal(r.Value, &m); err != nil {
				s.t.Fatal(err)
			}
			id, err := uuid.ParseBytes(r.Headers[0].Value)
			if err != nil || id.Version() != 7 {
				s.t.Errorf("--new-id made %q", r.Headers[0].Value)
			}
			lines[id.String()] = canonical(s.t, m.Event) + "\t" + canonical(s.t, m.Payload)
		})
	}
	return lines
}

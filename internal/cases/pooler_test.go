//go:build pgbouncer

package cases_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// pgbouncer puts a pooler in transaction mode, which doesn't track prepared statements, before the database, for routes
// alone: 5 server connections.
func (s *scene) pgbouncer() (said *bytes.Buffer) {
	s.t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
		if _, err := os.Stat(program); err != nil {
			s.t.Fatal("no pgbouncer here: scripts/setup.sh pgbouncer")
		}
	}
	u, err := url.Parse(s.url)
	must(s.t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(s.t, err)
	address := l.Addr().(*net.TCPAddr)
	l.Close()
	dir, err := os.MkdirTemp("", "semel-pooler-*") // another user reads it: root may not run a pooler
	must(s.t, err)
	s.t.Cleanup(func() { os.RemoveAll(dir) })
	must(s.t, os.Chmod(dir, 0o755))
	secret := ""
	if p, ok := u.User.Password(); ok && p != "" {
		secret = " password=" + p
	}
	ini := filepath.Join(dir, "pooler.ini")
	must(s.t, os.WriteFile(ini, fmt.Appendf(nil, `[databases]
%s = host=%s port=%s user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 5
max_client_conn = 200
`, strings.TrimPrefix(u.Path, "/"), u.Hostname(), u.Port(), u.User.Username(), secret, address.Port), 0o644))
	c := exec.Command(program, ini)
	if os.Geteuid() == 0 {
		c = exec.Command(program, "-u", "nobody", ini)
	}
	said = new(bytes.Buffer)
	c.Stdout, c.Stderr = said, said
	must(s.t, c.Start())
	s.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if s.t.Failed() {
			s.t.Logf("the pooler said:\n%.5000s", said)
		}
	})
	until(s.t, "the pooler listens", func() bool {
		c, err := net.Dial("tcp", address.String())
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	u.Host = address.String()
	q := u.Query()
	q.Set("default_query_exec_mode", "exec")
	u.RawQuery = q.Encode()
	s.via = u.String()
	return said
}

// G33: more lanes than the pooler has connections, in transaction mode, without statement tracking. With the documented
// setting no statement is missing or there twice, and no connection stays pinned.
func TestAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	const partitions, each = 12, 300
	s := newScene(t, partitions, "CREATE TABLE s (id int PRIMARY KEY, v text); CREATE TABLE log (id int)")
	said := s.pgbouncer()
	var rs []*kgo.Record
	for i := range partitions * each {
		r := kgo.Record{Partition: int32(i % partitions), Value: fmt.Appendf(nil, `{"id":%d,"v":"x"}`, i)}
		rs = append(rs, &r)
		if i%5 == 0 {
			again := r
			rs = append(rs, &again)
		}
	}
	rs = append(rs, &kgo.Record{Value: []byte(`{"id":"no number"}`)})
	s.produce(rs...)
	from := fmt.Sprintf("from: {topics: [TOPIC], concurrency: %d}", partitions)
	s.run(
		s.route(from, "id: {fields: [value.id]}", "to: {table: log, write: append}", "batch: {messages: 20}"),
		s.route("name: upsert", "consumer: TOPIC-u", from, "id: {position: true}", "to: {table: s, write: upsert}", "batch: {messages: 20}"),
	)
	s.want("SELECT count(*) || ' ' || count(DISTINCT id) FROM log", "3600 3600")
	s.want("SELECT count(*) FROM s", "3600")
	s.sums()
	s.want("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'", "0")
	// The pooler kept to its connections, and ended none because of an error.
	s.want("SELECT count(*) <= 5 FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'scene'", "true")
	if text := said.String(); strings.Contains(text, "42P05") || strings.Contains(text, "26000") {
		t.Error(text)
	}
}

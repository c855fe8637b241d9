package examples_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// deliver sends a delivery as GitHub does; 0: no answer.
func deliver(addr, secret, id string, body []byte) int {
	r, err := http.NewRequest("POST", "http://"+addr+"/", bytes.NewReader(body))
	if err != nil {
		return 0
	}
	sum := hmac.New(sha256.New, []byte(secret))
	sum.Write(body)
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum.Sum(nil)))
	r.Header.Set("X-GitHub-Event", "push")
	r.Header.Set("X-GitHub-Delivery", id)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	a.Body.Close()
	return a.StatusCode
}

// TestWebhook sends pushes from several connections, some of them twice at the
// same time, kills the receiver, and sends again what was not answered.
func TestWebhook(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	env := append(os.Environ(), "DATABASE_URL="+database, "WEBHOOK_SECRET=s3cret", "LISTEN="+addr)
	migrate(t, database)
	program := build(t, "./webhook")

	const pushes = 300
	body := func(i int) []byte {
		return fmt.Appendf(nil, `{"repository": {"full_name": "octo/cat"}, "commits": [%s{}]}`, strings.Repeat("{}, ", i%5))
	}
	want := int64(0)
	for i := range pushes {
		want += int64(i%5) + 1
	}
	commits := func() int64 {
		if !ask[bool](t, database, `SELECT to_regclass('repository') IS NOT NULL`) {
			return 0
		}
		return ask[int64](t, database, `SELECT coalesce(sum(commits), 0)::bigint FROM repository`)
	}
	answered := make([]bool, pushes)
	// round sends everything that has no answer yet, every third of it twice.
	round := func() {
		var senders sync.WaitGroup
		for worker := range 4 {
			senders.Go(func() {
				for i := worker; i < pushes; i += 4 {
					if answered[i] {
						continue
					}
					id := fmt.Sprintf("72d3162e-cc78-11e3-81ab-%012d", i)
					var twice sync.WaitGroup
					if i%3 == 0 {
						twice.Go(func() { deliver(addr, "s3cret", id, body(i)) })
					}
					answered[i] = deliver(addr, "s3cret", id, body(i)) == http.StatusOK
					twice.Wait()
				}
			})
		}
		senders.Wait()
	}
	listening := func() {
		untilTrue(t, "it listens", func() bool { return deliver(addr, "wrong", "x", nil) == http.StatusUnauthorized })
	}

	first := start(t, env, program)
	listening()
	var all sync.WaitGroup
	all.Go(round)
	untilTrue(t, "some are in", func() bool { return commits() > 0 })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	_ = first.Wait()

	second := start(t, env, program)
	listening()
	round()
	answered = make([]bool, pushes) // GitHub was asked to send all of it again
	round()
	if sum := commits(); sum != want {
		t.Errorf("%d commits, %d were pushed", sum, want)
	}
	if err := second.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = second.Wait()
}

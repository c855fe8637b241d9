package examples_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/internal/testenv"
)

// TestSarama takes the memory of message IDs away: the watermark alone stands
// between a loop on a foreign client and rebalances, kills, a process that was
// stopped in the middle and goes on, and a database that is put back. Producers
// send nothing twice here.
func TestSarama(t *testing.T) {
	t.Parallel()
	broker, _ := testenv.OwnBroker(t, map[string]int32{"payments": 4})
	database := testenv.Postgres(t)
	env := append(os.Environ(), "KAFKA_BROKERS="+broker.Addr(), "DATABASE_URL="+database)
	migrate(t, database)
	program := build(t, "./sarama")

	sent := 0
	more := func(n int) {
		t.Helper()
		sendEvery(t, broker.Addr(), sent, sent+n, 0)
		sent += n
	}
	settled := func(when string) {
		t.Helper()
		want := int64(sent * (sent + 1) / 2)
		until(t, database, fmt.Sprintf("%s: the balance is %d", when, want), func(sum int64) bool { return sum >= want })
		if sum := balance(t, database); sum != want {
			t.Fatalf("%s: the balance is %d, %d was sent", when, sum, want)
		}
	}
	signal := func(c interface{ Signal(os.Signal) error }, s os.Signal) {
		t.Helper()
		if err := c.Signal(s); err != nil {
			t.Fatal(err)
		}
	}

	more(3000)
	first := start(t, env, program)
	until(t, database, "some payments are in", func(sum int64) bool { return sum > 0 })
	second := start(t, env, program)
	untilTrue(t, "a rebalance in full run", func() bool {
		more(50)
		return ask[bool](t, database, `SELECT min(generation) > 1 FROM semel.watermark`)
	})
	settled("two members")

	more(2000)
	signal(second.Process, syscall.SIGKILL)
	_ = second.Wait()
	more(500)
	settled("one was killed")

	// Stopped past its session, while it works; its partitions move to another,
	// and then it goes on.
	zombie := first
	more(3000)
	signal(zombie.Process, syscall.SIGSTOP)
	third := start(t, env, program)
	more(500)
	settled("one is stopped")
	signal(zombie.Process, syscall.SIGCONT)
	more(500)
	settled("and goes on")

	// Put back: accounts and watermarks as they were a while ago, together.
	ask[string](t, database, `CREATE TABLE account_then AS TABLE account; CREATE TABLE watermark_then AS TABLE semel.watermark; SELECT ''`)
	more(2000)
	settled("before the restore")
	ask[string](t, database, `BEGIN; LOCK semel.watermark;
		UPDATE account SET balance = t.balance FROM account_then t WHERE t.id = account.id;
		UPDATE semel.watermark w SET next_offset = t.next_offset, claim_token = t.claim_token, generation = t.generation
		FROM watermark_then t WHERE t.topic = w.topic AND t.partition = w.partition; COMMIT; SELECT ''`)
	// An idle partition notices nothing before its next message.
	more(200)
	settled("after the restore")

	said := ""
	for _, c := range []*exec.Cmd{zombie, third} {
		signal(c.Process, syscall.SIGTERM)
		_ = c.Wait()
		said += c.Stderr.(*bytes.Buffer).String()
	}
	if !strings.Contains(said, semel.ErrFenced.Error()) {
		t.Error("nobody was fenced: the restore was no fault")
	}
}

package inboxtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox/inboxtest"
)

func orders() []semel.Message {
	return []semel.Message{{Key: []byte("anna"), Value: []byte("3")}, {Key: []byte("bert"), Value: []byte("5")}, {Key: []byte("anna"), Value: []byte("1")}}
}

func book(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
	return tx.Add(ctx, string(m.Key), int64(m.Value[0]-'0'))
}

// A handler that writes with the transaction that it is handed survives repeats
// and crashes.
func ExampleRun() {
	t := new(testing.T) // a test's own
	inboxtest.Run(t, book,
		semel.Message{Key: []byte("anna"), Value: []byte("3")},
		semel.Message{Key: []byte("bert"), Value: []byte("5")},
	)
	fmt.Println("failed:", t.Failed())
	// Output: failed: false
}

func TestRunPassesAHandlerThatKeepsToItsTransaction(t *testing.T) {
	inboxtest.Run(t, book, orders()...)
}

func TestRunPassesAHandlerThatRefusesAMessage(t *testing.T) {
	inboxtest.Run(t, func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
		if string(m.Key) == "bert" {
			return tx.Refuse()
		}
		return book(ctx, tx, m)
	}, orders()...)
}

// findings takes what a run reports.
type findings struct {
	testing.TB
	found []string
}

func (f *findings) Helper() {}
func (f *findings) Errorf(format string, args ...any) {
	f.found = append(f.found, fmt.Sprintf(format, args...))
}

func (f *findings) has(what string) bool {
	for _, s := range f.found {
		if strings.Contains(s, what) {
			return true
		}
	}
	return false
}

func TestRunCatchesAnEffectOutsideTheTransaction(t *testing.T) {
	mails := map[string]int64{}
	f := &findings{TB: t}
	inboxtest.RunOn(f, inboxtest.InMemory(func() map[string]int64 { return mails }), func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
		mails["mail to "+string(m.Key)]++ // sent whether the transaction commits or not
		return book(ctx, tx, m)
	}, orders()...)
	if !f.has("between its effect and COMMIT") || !f.has("mail to anna: 3, not 2") {
		t.Errorf("found: %v", f.found)
	}
	if f.has("sent twice by its producer") {
		t.Errorf("a repeat never reaches the handler: %v", f.found)
	}
}

func TestRunCatchesAMemoryInTheProcess(t *testing.T) {
	var sum int64
	f := &findings{TB: t}
	inboxtest.Run(f, func(ctx context.Context, tx *inboxtest.Tx, m semel.Message) error {
		sum += int64(m.Value[0] - '0')
		return tx.Add(ctx, "running total", sum)
	}, orders()...)
	if !f.has("running total") {
		t.Errorf("found: %v", f.found)
	}
}

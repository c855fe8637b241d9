package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/inbox"
)

// payment is what a message says, and where it was read.
type payment struct {
	Number  int32 `json:"payment"` // of the message: 0, 1, 2, ...
	Account int32 `json:"account"`
	Amount  int64 `json:"amount"`

	partition int32
	offset    int64
}

func (p *payment) read(value []byte, partition int32, offset int64) error {
	p.partition, p.offset = partition, offset
	return json.Unmarshal(value, p)
}

// table names one of a consumer's two tables.
func (k Kind) table(name string) string {
	return "demo." + strings.ReplaceAll(string(k), "-", "_") + "_" + name
}

// makeBooks makes the books of each consumer: balances, and a journal that says what
// made them so. The journal has no unique index but its own line number: it is part
// of the effect and remembers nothing.
func makeBooks(ctx context.Context, db *pgx.Conn) error {
	var sql strings.Builder
	sql.WriteString("CREATE SCHEMA demo;\n")
	for _, k := range kinds {
		fmt.Fprintf(&sql, `
			CREATE TABLE %[1]s (account int PRIMARY KEY, balance bigint NOT NULL);
			INSERT INTO %[1]s SELECT n, 0 FROM generate_series(0, %[3]d) n;
			CREATE TABLE %[2]s (
				line bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
				payment int NOT NULL, account int NOT NULL, amount bigint NOT NULL,
				partition int NOT NULL, "offset" bigint NOT NULL
			);`, k.table("balance"), k.table("journal"), accounts-1)
	}
	_, err := db.Exec(ctx, sql.String())
	return err
}

// book is the effect, the same for all three: amounts are added to balances. Done
// twice it counts twice.
func book(ctx context.Context, tx pgx.Tx, k Kind, ps []payment) error {
	n := len(ps)
	payments, into, amounts := make([]int32, n), make([]int32, n), make([]int64, n)
	partitions, offsets := make([]int32, n), make([]int64, n)
	for i, p := range ps {
		payments[i], into[i], amounts[i], partitions[i], offsets[i] = p.Number, p.Account, p.Amount, p.partition, p.offset
	}
	_, err := tx.Exec(ctx, fmt.Sprintf(`
		WITH booked AS (
			INSERT INTO %s (payment, account, amount, partition, "offset")
			SELECT * FROM unnest($1::int[], $2::int[], $3::bigint[], $4::int[], $5::bigint[])
			RETURNING account, amount
		)
		UPDATE %s b SET balance = balance + total
		FROM (SELECT account, sum(amount)::bigint AS total FROM booked GROUP BY account) t
		WHERE b.account = t.account`, k.table("journal"), k.table("balance")),
		payments, into, amounts, partitions, offsets)
	return err
}

// Progress is what is known of all in the middle of the show.
type Progress struct {
	Seconds   float64            `json:"seconds"`
	Messages  int64              `json:"messages"` // sent, each counted once
	Repeats   int64              `json:"repeats"`  // sent again by the producer
	Consumers []ConsumerProgress `json:"consumers"`
}

// ConsumerProgress is what is known of one consumer.
type ConsumerProgress struct {
	Kind     Kind  `json:"consumer"`
	Once     int64 `json:"once"`     // messages with exactly one effect
	Lost     int64 `json:"lost"`     // messages passed without an effect, so far
	Repeated int64 `json:"repeated"` // effects too many: the producer sent it again
	Redone   int64 `json:"redone"`   // effects too many: the broker delivered it again
	Behind   int64 `json:"behind"`   // records not yet taken
	Kills    int64 `json:"kills"`
	// Back is the median time from SIGKILL to the next commit, in seconds; 0: none yet.
	Back float64 `json:"back_seconds"`
	// Duplicate is how many records the inbox refused, Redelivered how many the
	// watermark did. Of semel alone.
	Duplicate   int64 `json:"refused_by_inbox"`
	Redelivered int64 `json:"refused_by_watermark"`
}

// books follow what PostgreSQL and the broker say while the show goes on. They are
// for the eye; the audit reads everything again.
type books struct {
	*show
	of []following
}

// following is how far the reading of one consumer's journal is.
type following struct {
	*consumer
	line   int64
	times  []uint16           // effects of each message
	places [partitions][]bool // whether the record there had an effect
	once   int64
	redone int64
	extra  int64 // effects beyond the first of a message

	duplicate int64 // refused by the inbox

	acked   [2][partitions]int64 // at the last two looks
	passed  [partitions]int64    // places below it are judged
	missing map[int32]struct{}   // passed without an effect
}

func newBooks(s *show) *books {
	b := &books{show: s}
	for _, c := range s.consumers {
		b.of = append(b.of, following{consumer: c, missing: map[int32]struct{}{}})
	}
	return b
}

// look reads what is new.
func (b *books) look(ctx context.Context) (Progress, error) {
	var p Progress
	var ends [partitions]int64
	p.Messages, p.Repeats, ends = b.stream.sent()
	for i := range b.of {
		f := &b.of[i]
		if err := b.position(ctx, f); err != nil {
			return p, err
		}
		if err := b.journal(ctx, f); err != nil {
			return p, err
		}
		f.judge(b.stream)
		c := ConsumerProgress{
			Kind: f.kind, Once: f.once, Lost: int64(len(f.missing)), Redone: f.redone, Repeated: f.extra - f.redone,
		}
		for i, end := range ends {
			c.Behind += max(end-f.acked[0][i], 0)
		}
		c.Kills, c.Back, c.Redelivered = f.life()
		c.Duplicate = f.duplicate
		p.Consumers = append(p.Consumers, c)
	}
	return p, nil
}

// position asks how far the consumer is: its watermark, or what it has acked.
func (b *books) position(ctx context.Context, f *following) error {
	f.acked[1] = f.acked[0]
	if f.kind == Semel {
		rows, err := b.watermarks(ctx)
		f.duplicate = 0
		for _, r := range rows {
			f.acked[0][r.Number] = r.Next
			f.duplicate += r.Accounts.Outcome[inbox.DuplicateID].Count
		}
		return err
	}
	offsets, err := b.admin.Offsets(ctx, string(f.kind))
	if err != nil {
		return err
	}
	for _, o := range offsets {
		f.acked[0][o.Number] = o.Next
	}
	return nil
}

// journal reads the lines that are new.
func (b *books) journal(ctx context.Context, f *following) error {
	rows, err := b.pool.Query(ctx, fmt.Sprintf(`SELECT line, payment, partition, "offset" FROM %s WHERE line > $1 ORDER BY line`, f.kind.table("journal")), f.line)
	if err != nil {
		return err
	}
	var payment, partition int32
	var offset int64
	_, err = pgx.ForEachRow(rows, []any{&f.line, &payment, &partition, &offset}, func() error {
		f.times = upTo(f.times, int64(payment))
		places := upTo(f.places[partition], offset)
		f.places[partition] = places
		delete(f.missing, payment)
		f.times[payment]++
		switch f.times[payment] {
		case 1:
			f.once++
		case 2:
			f.once--
			fallthrough
		default:
			f.extra++
		}
		if places[offset] {
			f.redone++
		}
		places[offset] = true
		return nil
	})
	return err
}

// upTo makes s long enough for an index.
func upTo[T any](s []T, index int64) []T {
	if n := int(index) + 1 - len(s); n > 0 {
		s = append(s, make([]T, n)...)
	}
	return s
}

// judge finds messages that the consumer has left behind without an effect. What it
// acked before the last look had time to take effect since.
func (f *following) judge(s *stream) {
	for partition, upTo := range f.acked[1] {
		for _, number := range s.numbers(int32(partition), f.passed[partition], upTo) {
			if int(number) >= len(f.times) || f.times[number] == 0 {
				f.missing[number] = struct{}{}
			}
		}
		f.passed[partition] = max(f.passed[partition], upTo)
	}
}

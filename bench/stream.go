package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/semelhq/semel"
)

// partitions of every topic here.
const partitions = 4

// batchSize is what shares one transaction, COPY's own included.
const batchSize = 5000

// order is a row, and a message.
type order struct {
	id      semel.ID
	account string
	amount  int64
	at      time.Time
	payload string // JSON
	version int64
}

// stream is what is sent: orders, some of them more than once.
type stream struct {
	name   string
	orders []order
	// What the table must hold at the end.
	rows int
	sum  int64
}

// payload fills an order up to 319 bytes of JSON.
var payload = `{"currency":"EUR","items":[{"sku":"A-100293","n":2},{"sku":"B-449120","n":1}],"note":"` + strings.Repeat("n", 58) + `"}`

// newStream makes n deliveries. share of them repeat an earlier one: half of
// these one of the last hundred, half any.
func newStream(name string, seed uint64, n int, share float64) *stream {
	rnd := rand.New(rand.NewPCG(seed, 1))
	s := &stream{name: name, orders: make([]order, 0, n)}
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		if i > 0 && rnd.Float64() < share {
			back := 1 + rnd.IntN(i)
			if rnd.IntN(2) == 0 {
				back = 1 + rnd.IntN(min(i, 100))
			}
			s.orders = append(s.orders, s.orders[i-back])
			continue
		}
		o := newOrder(rnd, begin.Add(time.Duration(i)*1017*time.Microsecond))
		s.orders = append(s.orders, o)
		s.rows++
		s.sum += o.amount
	}
	return s
}

func newOrder(rnd *rand.Rand, at time.Time) order {
	o := order{account: fmt.Sprintf("account-%06d", rnd.IntN(100_000)), amount: 1 + rnd.Int64N(90_000), at: at, payload: payload}
	binary.BigEndian.PutUint64(o.id[:], rnd.Uint64())
	binary.BigEndian.PutUint64(o.id[8:], rnd.Uint64())
	o.id[6] = o.id[6]&0x0f | 0x40
	o.id[8] = o.id[8]&0x3f | 0x80
	return o
}

// newStates makes n versions of n/3 orders, a tenth of them older than one that
// was sent before.
func newStates(name string, seed uint64, n int) *stream {
	rnd := rand.New(rand.NewPCG(seed, 2))
	keys := make([]order, max(n/3, 1))
	for i := range keys {
		keys[i] = newOrder(rnd, time.Date(2026, 3, 1, 0, 0, i, 0, time.UTC))
	}
	s := &stream{name: name}
	for range n {
		k := &keys[rnd.IntN(len(keys))]
		if k.version > 1 && rnd.IntN(10) == 0 {
			old := *k
			old.version = k.version - 1
			s.orders = append(s.orders, old)
			continue
		}
		if k.version == 0 {
			s.rows++
		}
		k.version++
		k.amount = 1 + rnd.Int64N(90_000)
		s.orders = append(s.orders, *k)
	}
	for _, k := range keys {
		if k.version > 0 {
			s.sum += k.amount
		}
	}
	return s
}

// again is a stream in which every message was sent before.
func (s *stream) again() *stream {
	return &stream{name: s.name + ", again", orders: append(append([]order{}, s.orders...), s.orders...), rows: s.rows, sum: s.sum}
}

func (o *order) json(b []byte) []byte {
	b = append(b, `{"id":"`...)
	b = append(b, o.id.String()...)
	b = append(b, `","account":"`...)
	b = append(b, o.account...)
	b = fmt.Appendf(b, `","amount":%d,`, o.amount)
	if o.version > 0 {
		b = fmt.Appendf(b, `"version":%d,`, o.version)
	}
	b = append(b, `"at":"`...)
	b = o.at.AppendFormat(b, "2006-01-02T15:04:05.000000Z07:00")
	b = append(b, `","payload":`...)
	b = append(b, o.payload...)
	return append(b, '}')
}

// logs are the stream as the four partitions of a topic hold it.
func (s *stream) logs(topic string) [][]semel.Message {
	logs := make([][]semel.Message, partitions)
	var buf []byte
	for i := range s.orders {
		o := &s.orders[i]
		p := o.partition()
		if cap(buf)-len(buf) < 1024 {
			buf = make([]byte, 0, 1<<20)
		}
		at := len(buf)
		buf = o.json(buf)
		logs[p] = append(logs[p], semel.Message{
			Topic: topic, Partition: int32(p), Offset: int64(len(logs[p])), Timestamp: o.at,
			Key: []byte(o.account), Value: buf[at:len(buf):len(buf)],
			Headers: []semel.Header{{Name: "message-id", Value: []byte(o.id.String())}},
		})
	}
	return logs
}

// partition keeps messages of one account together.
func (o *order) partition() int {
	return int(binary.BigEndian.Uint64([]byte(o.account[len(o.account)-8:])) % partitions)
}

// copies are the distinct rows as streams of binary COPY, one a batch.
func (s *stream) copies() [][]byte {
	var all [][]byte
	seen := make(map[semel.ID]bool, s.rows)
	var b []byte
	n := 0
	flush := func() {
		if n > 0 {
			all = append(all, append(b, 0xff, 0xff))
		}
		b, n = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0
	}
	flush()
	for i := range s.orders {
		o := &s.orders[i]
		if seen[o.id] {
			continue
		}
		seen[o.id] = true
		b = o.tuple(b)
		if n++; n == batchSize {
			flush()
		}
	}
	flush()
	return all
}

var epoch2000 = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (o *order) tuple(b []byte) []byte {
	b = append(b, 0, 5)
	b = field(b, o.id[:])
	b = field(b, []byte(o.account))
	b = field(b, binary.BigEndian.AppendUint64(nil, uint64(o.amount)))
	b = field(b, binary.BigEndian.AppendUint64(nil, uint64(o.at.Sub(epoch2000).Microseconds())))
	b = binary.BigEndian.AppendUint32(b, uint32(len(o.payload)+1))
	b = append(b, 1) // jsonb's version
	return append(b, o.payload...)
}

func field(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

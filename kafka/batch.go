package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
)

// A record batch as it lies in the log: a header of headerSize bytes, then the
// records, perhaps compressed.
const headerSize = 61

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is a record batch that was fetched and not yet handed out in full.
type batch struct {
	first, last int64
	epoch       int32 // of the leader that wrote it; -1 unknown
	count       int   // records
	codec       kgo.CompressionCodecType
	base        int64 // timestamps count from here, in milliseconds
	appendTime  bool  // the log's time for all of them, which is base
	// skip is set for markers of Kafka transactions and for what an aborted
	// one wrote: advanced over, never handed out.
	skip   bool
	size   int    // bytes fetched for it
	stored []byte // the records as fetched; nil when skipped
	data   []byte // the records, decompressed; nil until then
	read   int    // bytes of data handed out
	done   int    // records handed out

	// Read ahead of Poll: what is not yet handed out of its messages.
	parsed   bool
	messages []semel.Message
	ahead    int // bytes that this and decompressing took
}

// errDamaged is wrapped by what is said of bytes that are no record batch.
var errDamaged = errors.New("damaged record batch")

// scan cuts what a fetch brought for one partition into batches, leaves out what
// lies below from, and says where the next fetch begins. A batch that was cut
// off at the end is left for the next fetch. On an error what came before it is
// good.
func scan(rp *kmsg.FetchResponseTopicPartition, from int64) (batches []batch, next int64, err error) {
	aborts := abortsOf(rp)
	next = from
	for in := rp.RecordBatches; len(in) >= 17; {
		size := int(int32(binary.BigEndian.Uint32(in[8:]))) + 12
		if size < 17 {
			return batches, next, fmt.Errorf("%w after offset %d: a length of %d", errDamaged, next, size)
		}
		if len(in) < size {
			break
		}
		raw := in[:size]
		in = in[size:]
		if magic := raw[16]; magic != 2 {
			return batches, next, fmt.Errorf("%w after offset %d: format %d; formats before that of Kafka 0.11 can't be read", errDamaged, next, magic)
		}
		b, producer, transactional, control, err := header(raw)
		if err != nil {
			return batches, next, fmt.Errorf("%w after offset %d: %w", errDamaged, next, err)
		}
		aborted := transactional && aborts.covers(producer, b.first)
		if control {
			// A control record's key is a version and a type; type 0 is the end
			// of an aborted transaction.
			if aborted && abortMarker(b.stored) {
				aborts.ended(producer)
			}
		}
		if b.skip = control || aborted; b.skip {
			b.stored, b.size = nil, 0
		}
		if b.last < next {
			continue
		}
		batches = append(batches, b)
		next = b.last + 1
	}
	return batches, next, nil
}

func header(raw []byte) (b batch, producer int64, transactional, control bool, err error) {
	if len(raw) < headerSize {
		return b, 0, false, false, fmt.Errorf("%d bytes", len(raw))
	}
	if want, got := binary.BigEndian.Uint32(raw[17:]), crc32.Checksum(raw[21:], castagnoli); want != got {
		return b, 0, false, false, fmt.Errorf("checksum %08x instead of %08x", got, want)
	}
	attributes := binary.BigEndian.Uint16(raw[21:])
	b.first = int64(binary.BigEndian.Uint64(raw))
	b.last = b.first + int64(int32(binary.BigEndian.Uint32(raw[23:])))
	b.epoch = int32(binary.BigEndian.Uint32(raw[12:]))
	b.codec = kgo.CompressionCodecType(attributes & 7)
	b.appendTime = attributes&8 != 0
	b.base = int64(binary.BigEndian.Uint64(raw[27:]))
	if b.appendTime {
		b.base = int64(binary.BigEndian.Uint64(raw[35:]))
	}
	producer = int64(binary.BigEndian.Uint64(raw[43:]))
	b.count = int(int32(binary.BigEndian.Uint32(raw[57:])))
	b.stored = raw[headerSize:]
	b.size = len(raw)
	if b.count < 0 || b.last < b.first || b.count > 0 && len(b.stored) == 0 {
		return b, 0, false, false, fmt.Errorf("%d records, offsets %d to %d, %d bytes", b.count, b.first, b.last, len(b.stored))
	}
	return b, producer, attributes&16 != 0, attributes&32 != 0, nil
}

func abortMarker(records []byte) bool {
	r, _, err := readRecord(records)
	return err == nil && len(r.key) >= 4 && r.key[2] == 0 && r.key[3] == 0
}

// aborts are the first offsets of aborted transactions, by producer, ascending.
type aborts map[int64][]int64

func abortsOf(rp *kmsg.FetchResponseTopicPartition) aborts {
	if len(rp.AbortedTransactions) == 0 {
		return nil
	}
	a := make(aborts)
	for _, t := range rp.AbortedTransactions {
		a[t.ProducerID] = append(a[t.ProducerID], t.FirstOffset)
	}
	for _, firsts := range a { // not every broker sorts them
		slices.Sort(firsts)
	}
	return a
}

func (a aborts) covers(producer, first int64) bool {
	f := a[producer]
	return len(f) > 0 && first >= f[0]
}

func (a aborts) ended(producer int64) { a[producer] = a[producer][1:] }

// open makes the batch's records readable; it says how many bytes that took.
func (b *batch) open(codec kgo.Decompressor) (int, error) {
	if b.data != nil || b.skip {
		return 0, nil
	}
	if b.codec == 0 || len(b.stored) == 0 {
		b.data = b.stored
		return 0, nil
	}
	data, err := codec.Decompress(b.stored, b.codec)
	if err != nil {
		return 0, fmt.Errorf("%w at offset %d: %w", errDamaged, b.first, err)
	}
	b.data = data
	return len(data), nil
}

// record is one record of a batch; its slices point into the batch.
type record struct {
	time, offset int64 // relative to the batch
	key, value   []byte
	headers      []byte // as they lie there
	nheaders     int
}

var errRecord = errors.New("a record ends too early")

// readRecord reads the record at the start of in, and says how long it is.
func readRecord(in []byte) (r record, size int, err error) {
	length, n := binary.Varint(in)
	if n <= 0 || length < 1 || length > int64(len(in)-n) {
		return r, 0, errRecord
	}
	size = n + int(length)
	c := cursor{in: in[n+1 : size]} // after the attributes, which mean nothing
	r.time = c.varint()
	r.offset = c.varint()
	r.key = c.bytes()
	r.value = c.bytes()
	count := c.varint()
	if c.bad || count < 0 || count > int64(len(c.in)) {
		return r, 0, errRecord
	}
	r.headers, r.nheaders = c.in, int(count)
	return r, size, nil
}

// cursor reads varints and bytes until something is wrong.
type cursor struct {
	in  []byte
	bad bool
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.in)
	if n <= 0 {
		c.bad, c.in = true, nil
		return 0
	}
	c.in = c.in[n:]
	return v
}

// bytes is nil for a length of -1, and empty for 0.
func (c *cursor) bytes() []byte {
	n := c.varint()
	if n < 0 || c.bad {
		return nil
	}
	if n > int64(len(c.in)) {
		c.bad, c.in = true, nil
		return nil
	}
	b := c.in[:n:n]
	c.in = c.in[n:]
	return b
}

// names keeps header names, so that each is made a string once.
type names map[string]string

func (ns names) of(b []byte) string {
	if s, ok := ns[string(b)]; ok {
		return s
	}
	if len(ns) >= 1024 { // somebody puts data into names
		clear(ns)
	}
	s := string(b)
	ns[s] = s
	return s
}

// What a message and a header take beside their bytes, about.
const (
	messageSize = 144
	headerBytes = 40
)

// parse reads all records from an offset on, once the batch is open. On an error
// nothing has happened: who takes them meets it.
func (b *batch) parse(p semel.Partition, from int64, ns names) {
	whole := *b
	ms, hs, _, _, _, err := whole.take(make([]semel.Message, 0, b.count), nil, p, from, math.MaxInt, math.MaxInt, ns)
	if err != nil {
		return
	}
	b.parsed, b.messages, b.done, b.read = true, ms, whole.done, whole.read
	b.ahead += messageSize*len(ms) + headerBytes*len(hs)
}

// hand is take for a batch that was parsed.
func (b *batch) hand(ms []semel.Message, from int64, max, size int) (_ []semel.Message, next int64, took int, end bool) {
	next = from
	for ; len(b.messages) > 0 && max > 0 && (took == 0 || took < size); b.messages = b.messages[1:] {
		m := &b.messages[0]
		if m.Offset < from {
			continue
		}
		ms = append(ms, *m)
		next = m.Offset + 1
		took += len(m.Key) + len(m.Value)
		for i := range m.Headers {
			took += len(m.Headers[i].Name) + len(m.Headers[i].Value)
		}
		max--
	}
	if len(b.messages) == 0 {
		return ms, b.last + 1, took, true
	}
	return ms, next, took, false
}

// take appends the batch's next records from offset from on to ms, at most max of
// them and no more than size bytes beyond the first. It says where the reader
// is then, how many bytes it took, and whether the batch is at its end.
func (b *batch) take(ms []semel.Message, hs []semel.Header, p semel.Partition, from int64, max, size int, ns names) (
	_ []semel.Message, _ []semel.Header, next int64, took int, end bool, err error,
) {
	if b.parsed {
		ms, next, took, end = b.hand(ms, from, max, size)
		return ms, hs, next, took, end, nil
	}
	next = from
	for ; b.done < b.count && max > 0 && (took == 0 || took < size); b.done++ {
		r, n, err := readRecord(b.data[b.read:])
		if err != nil {
			return ms, hs, next, took, false, fmt.Errorf("%w at offset %d: %w", errDamaged, next, err)
		}
		b.read += n
		offset := b.first + r.offset
		if offset < from {
			continue
		}
		if offset < next || offset > b.last {
			return ms, hs, next, took, false, fmt.Errorf("%w: offset %d in a batch of %d to %d, after %d", errDamaged, offset, b.first, b.last, next-1)
		}
		m := semel.Message{Topic: p.Topic, Partition: p.Number, Offset: offset, Key: r.key, Value: r.value}
		if b.appendTime {
			m.Timestamp = time.UnixMilli(b.base)
		} else {
			m.Timestamp = time.UnixMilli(b.base + r.time)
		}
		if r.nheaders > 0 {
			c := cursor{in: r.headers}
			at := len(hs)
			for range r.nheaders {
				name := c.bytes()
				hs = append(hs, semel.Header{Name: ns.of(name), Value: c.bytes()})
			}
			if c.bad {
				return ms, hs, next, took, false, fmt.Errorf("%w at offset %d: its headers end too early", errDamaged, offset)
			}
			m.Headers = hs[at:len(hs):len(hs)]
		}
		ms = append(ms, m)
		next = offset + 1
		took += n
		max--
	}
	if b.done == b.count {
		// Also when compaction took the last records: the batch keeps its last
		// offset.
		next = b.last + 1
		end = true
	}
	return ms, hs, next, took, end, nil
}

package kafka

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel"
)

// encode makes a record batch of one record a value, none for nil.
func encode(first int64, attributes int16, lastDelta int32, values ...[]byte) []byte {
	b := kmsg.RecordBatch{FirstOffset: first, Magic: 2, Attributes: attributes, LastOffsetDelta: lastDelta, PartitionLeaderEpoch: 3, ProducerID: 7}
	for i, v := range values {
		if v == nil {
			continue
		}
		r := kmsg.Record{OffsetDelta: int32(i), Value: v}
		body := r.AppendTo(nil)
		_, n := binary.Varint(body)
		r.Length = int32(len(body) - n)
		b.Records = r.AppendTo(b.Records)
		b.NumRecords++
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	return sum(raw)
}

func sum(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

func TestABatchEndsBehindItsLastOffsetAlsoWithoutRecords(t *testing.T) {
	t.Parallel()
	// Compaction took offsets 10, 12, 13 and 14; the next batch has none left.
	raw := append(encode(10, 0, 4, nil, []byte("v")), encode(15, 0, 9)...)
	bs, next, err := scan(&kmsg.FetchResponseTopicPartition{RecordBatches: raw}, 10)
	if err != nil || len(bs) != 2 || next != 25 {
		t.Fatalf("%+v, %d, %v", bs, next, err)
	}
	at := int64(10)
	var ms []semel.Message
	for i := range bs {
		if _, err := bs[i].open(kgo.DefaultDecompressor()); err != nil {
			t.Fatal(err)
		}
		var end bool
		ms, _, at, _, end, err = bs[i].take(ms, nil, semel.Partition{Topic: "t"}, at, 10, 100, names{})
		if err != nil || !end || at != bs[i].last+1 {
			t.Fatalf("at %d, end %v, %v", at, end, err)
		}
	}
	if len(ms) != 1 || ms[0].Offset != 11 {
		t.Errorf("%+v", ms)
	}
}

func TestABatchThatIsCutOffIsLeftForTheNextFetch(t *testing.T) {
	t.Parallel()
	one := encode(0, 0, 0, []byte("v"))
	raw := append(one, encode(1, 0, 0, []byte("w"))...)
	for cut := len(one); cut < len(raw); cut++ {
		bs, next, err := scan(&kmsg.FetchResponseTopicPartition{RecordBatches: raw[:cut]}, 0)
		if err != nil || len(bs) != 1 || next != 1 {
			t.Fatalf("cut at %d: %d batches, next %d, %v", cut, len(bs), next, err)
		}
	}
}

func TestDamageIsNamed(t *testing.T) {
	t.Parallel()
	raw := encode(0, 0, 0, []byte("value"))
	for i := 16; i < len(raw); i++ { // the length before it is only found to be wrong by its effects
		bad := append([]byte(nil), raw...)
		bad[i] ^= 1
		if _, next, err := scan(&kmsg.FetchResponseTopicPartition{RecordBatches: bad}, 0); !errors.Is(err, errDamaged) || next != 0 {
			t.Errorf("byte %d: next %d, %v", i, next, err)
		}
	}
}

func FuzzBatch(f *testing.F) {
	f.Add(encode(0, 0, 1, []byte("v"), []byte("w")), int64(0))
	f.Add(encode(5, 1<<4, 0, []byte("v")), int64(5))
	f.Add(encode(5, 1<<4|1<<5, 0, []byte{}), int64(5))
	f.Fuzz(func(t *testing.T, raw []byte, from int64) {
		if len(raw) >= headerSize { // else nothing gets past the checksum
			binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
			raw[22] &^= 7 // not compressed
			sum(raw)
		}
		rp := &kmsg.FetchResponseTopicPartition{RecordBatches: raw}
		rp.AbortedTransactions = []kmsg.FetchResponseTopicPartitionAbortedTransaction{{ProducerID: 7, FirstOffset: 5}}
		bs, next, _ := scan(rp, from)
		if next < from {
			t.Fatalf("from %d back to %d", from, next)
		}
		at := from
		for i := range bs {
			b := &bs[i]
			if b.skip {
				at = b.last + 1
				continue
			}
			if _, err := b.open(kgo.DefaultDecompressor()); err != nil {
				return
			}
			ms, _, to, _, end, err := b.take(nil, nil, semel.Partition{}, at, 1<<20, 1<<30, names{})
			for _, m := range ms {
				if m.Offset < at || m.Offset >= to || m.Offset > b.last {
					t.Fatalf("offset %d outside of %d to %d", m.Offset, at, to)
				}
				at = m.Offset + 1
			}
			if err != nil {
				return
			}
			if !end || to != b.last+1 {
				t.Fatalf("ended (%v) at %d of %d", end, to, b.last)
			}
			at = to
		}
		if at != next {
			t.Fatalf("read to %d, next fetch at %d", at, next)
		}
	})
}

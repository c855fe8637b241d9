package avro_test

import (
	"math/big"
	"syscall"
	"testing"
	"time"

	ref "github.com/twmb/avro"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/avro"
)

// An order as in the benchmark of JSON: the two say the same.
const benchSchema = `{"type":"record","name":"Order","fields":[
	{"name":"id","type":"long"},{"name":"customer","type":"string"},{"name":"email","type":["null","string"]},{"name":"total","type":{"type":"bytes","logicalType":"decimal","precision":15,"scale":2}},
	{"name":"currency","type":{"type":"enum","name":"C","symbols":["EUR","PLN"]}},{"name":"placed_at","type":{"type":"long","logicalType":"timestamp-millis"}},{"name":"paid","type":"boolean"},{"name":"weight","type":"double"},
	{"name":"lines","type":{"type":"array","items":{"type":"record","name":"L","fields":[{"name":"sku","type":"string"},{"name":"quantity","type":"int"}]}}}]}`

func BenchmarkDecodeOrder(b *testing.B) {
	lines := []any{map[string]any{"sku": "A-1000", "quantity": int32(2)}, map[string]any{"sku": "B-2000", "quantity": int32(1)}}
	data, err := ref.MustParse(benchSchema).Encode(map[string]any{
		"id": int64(812345678901234567), "customer": "Katarzyna Nowak", "email": "katarzyna.nowak@example.com", "total": big.NewRat(123456, 100), "currency": "PLN",
		"placed_at": time.UnixMilli(1774749599123), "paid": true, "weight": 12.25, "lines": lines,
	})
	if err != nil {
		b.Fatal(err)
	}
	s, err := avro.Parse(benchSchema)
	if err != nil {
		b.Fatal(err)
	}
	text, err := s.AppendJSON(nil, data)
	if err != nil {
		b.Fatal(err)
	}
	var columns []sink.Column
	for _, e := range []string{"id", "customer", "email", "total", "currency", "placed_at", "paid", "weight", "lines"} {
		p, err := sink.ParsePath("value." + e)
		if err != nil {
			b.Fatal(err)
		}
		columns = append(columns, sink.Column{Name: e, From: p})
	}
	run := func(name string, value []byte, open ...sink.Opener) {
		m, err := sink.NewMapping(sink.MappingConfig{Columns: columns, Open: open})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			msg := semel.Message{Value: value}
			var row sink.Row
			from := cpu(b)
			for b.Loop() {
				if err := m.Decode(&msg, &row); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-from)/float64(b.N), "cpu-ns/op")
		})
	}
	run("json", text)
	run("avro", data, sink.Formats(s, nil))
	run("avro by its text", data, sink.Formats(asText{s}, nil))
	b.Run("library", func(b *testing.B) { // a map, from which rows would still have to be made
		lib := ref.MustParse(benchSchema)
		b.ReportAllocs()
		for b.Loop() {
			var v any
			if _, err := lib.Decode(data, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// cpu is what the process has used: on a machine with other work beside, the time of
// a clock says little.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

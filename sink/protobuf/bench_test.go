package protobuf_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
	"github.com/semelhq/semel/sink/protobuf"
)

const benchProto = `syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; string customer = 2; optional string email = 3; double weight = 4; google.protobuf.Timestamp placed_at = 5; bool paid = 6; repeated Line lines = 7;
  message Line { string sku = 1; int32 quantity = 2; }
}`

func BenchmarkDecodeOrder(b *testing.B) {
	files, err := protobuf.Compile("o.proto", map[string]string{"o.proto": benchProto})
	if err != nil {
		b.Fatal(err)
	}
	m, err := files.Message("Order")
	if err != nil {
		b.Fatal(err)
	}
	data := []byte("\x08\xb5\xa1\x9e\xd8\x8a\xc8\xda\xa2\x0b\x12\x0fKatarzyna Nowak\x1a\x1bkatarzyna.nowak@example.com\x21\x00\x00\x00\x00\x00\x80\x28\x40\x2a\x06\x08\xdf\xf4\xa1\xce\x06\x30\x01\x3a\x0a\x0a\x06A-1000\x10\x02\x3a\x0a\x0a\x06B-2000\x10\x01")
	text, err := m.AppendJSON(nil, data)
	if err != nil {
		b.Fatal(err)
	}
	var columns []sink.Column
	for _, e := range []string{"id", "customer", "email", "weight", "placed_at", "paid", "lines"} {
		p, err := sink.ParsePath("value." + e)
		if err != nil {
			b.Fatal(err)
		}
		columns = append(columns, sink.Column{Name: e, From: p})
	}
	for name, of := range map[string]struct {
		value []byte
		open  []sink.Opener
	}{"json": {value: text}, "protobuf": {data, []sink.Opener{sink.Formats(m, nil)}}, "protobuf by its text": {data, []sink.Opener{sink.Formats(asText{m}, nil)}}} {
		mapping, err := sink.NewMapping(sink.MappingConfig{Columns: columns, Open: of.open})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			msg := semel.Message{Value: of.value}
			var row sink.Row
			from := cpu(b)
			for b.Loop() {
				if err := mapping.Decode(&msg, &row); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-from)/float64(b.N), "cpu-ns/op")
		})
	}
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

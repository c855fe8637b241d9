package sink_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

// event is one of Debezium, bare.
func event(op, before, after, source string) string {
	return fmt.Sprintf(`{"before":%s,"after":%s,"source":%s,"op":%q,"ts_ms":1764460800123,"transaction":null}`, before, after, source, op)
}

const pgSource = `{"version":"3.3.1.Final","connector":"postgresql","name":"shop","ts_ms":1764460800000,"snapshot":"false","db":"shop","sequence":"[\"100\",\"120\"]","schema":"public","table":"orders","txId":571,"lsn":120,"xmin":null}`

// debezium maps columns named like their expressions.
func debezium(t testing.TB, edit func(*sink.MappingConfig), exprs ...string) *sink.Mapping {
	t.Helper()
	cfg := sink.MappingConfig{Open: []sink.Opener{sink.NewDebezium()}, KeyFormat: sink.KeyJSON}
	for _, e := range exprs {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: strings.TrimPrefix(e, "value."), From: path(t, e)})
	}
	if edit != nil {
		edit(&cfg)
	}
	return newMapping(t, cfg)
}

// texts are the row's values, with bars between them.
func texts(row *sink.Row) string {
	var out []string
	for _, v := range row.Values {
		if v.IsNull() {
			out = append(out, v.Kind.String())
		} else {
			out = append(out, string(v.Text(nil)))
		}
	}
	return strings.Join(out, "|")
}

func TestDebeziumsRowAfterTheChangeIsTheValue(t *testing.T) {
	t.Parallel()
	m := debezium(t, nil, "value.id", "value.total", "envelope.op", "envelope.source.table", "envelope.position", "key.id", "value")
	after := `{"id":7,"total":12.50}`
	for name, value := range map[string]string{
		"bare":         event("u", "null", after, pgSource),
		"payload":      `{"payload":` + event("u", "null", after, pgSource) + `}`,
		"null schema":  `{"schema":null,"payload":` + event("u", "null", after, pgSource) + `}`,
		"plain schema": `{"schema":{"type":"struct","fields":[{"type":"struct","fields":[{"type":"int32","field":"id"}],"field":"after"}]},"payload":` + event("u", "null", after, pgSource) + `}`,
	} {
		for _, key := range []string{`{"id":7}`, `{"schema":{"type":"struct","fields":[{"type":"int32","optional":false,"field":"id"}]},"payload":{"id":7}}`} {
			var row sink.Row
			if err := m.Decode(&semel.Message{Key: []byte(key), Value: []byte(value)}, &row); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := texts(&row); got != `7|12.50|u|orders|120|7|`+after || row.Tombstone {
				t.Errorf("%s: %s", name, got)
			}
		}
	}
	for _, op := range []string{"c", "r"} {
		var row sink.Row
		if err := m.Decode(&semel.Message{Value: []byte(event(op, "null", after, pgSource))}, &row); err != nil || row.Values[0].Kind != sink.Number {
			t.Errorf("op %s: %v", op, err)
		}
	}
}

func TestDebeziumsDeletionTakesItsKeyFromTheKeyElseFromBefore(t *testing.T) {
	t.Parallel()
	m := debezium(t, func(c *sink.MappingConfig) {
		c.KeyColumns = []string{"a", "id"}
		c.ID = []sink.Path{path(t, "value.b"), path(t, "envelope.position")}
	}, "value.a", "value.id", "value.note", "envelope.op")
	before := `{"a":1,"b":2,"id":3,"note":"x"}`
	for key, want := range map[string]string{
		`{"a":5,"id":6}`: "5|6|absent|d",
		`{"id":6}`:       "1|6|absent|d",
		"":               "1|3|absent|d",
		`{"schema":{"type":"struct","fields":[]},"payload":null}`: "1|3|absent|d",
	} {
		msg := semel.Message{Value: []byte(event("d", before, "null", pgSource))}
		if key != "" {
			msg.Key = []byte(key)
		}
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
		if got := texts(&row); got != want || !row.Tombstone {
			t.Errorf("key %s: %s, want %s", key, got, want)
		}
		if id, err := m.ID(&msg, &row); err != nil || id != semel.IDOf([]byte("2"), []byte("120")) {
			t.Errorf("key %s: the ID is %s, %v", key, id, err)
		}
	}
}

func TestDebeziumSkipsWhatChangesNoRowAndRefusesATruncate(t *testing.T) {
	t.Parallel()
	m := debezium(t, nil, "value.id")
	for _, value := range []string{"", `{"op":"m","message":{"prefix":"p","content":"eA=="},"source":` + pgSource + `}`} {
		msg := semel.Message{Key: []byte(`{"id":1}`)}
		if value != "" {
			msg.Value = []byte(value)
		}
		var row sink.Row
		if err := m.Decode(&msg, &row); err != nil || row.Skip == "" {
			t.Errorf("%q is not skipped: %v", value, err)
		}
	}
	for value, why := range map[string]string{
		event("t", "null", "null", pgSource):       "truncate (op t)",
		event("x", "null", "null", pgSource):       `op is "x"`,
		event("u", "null", "null", pgSource):       "after is null",
		`{"id":1}`:                                 "op is absent",
		`{"schema":{"type":7},"payload":{"op":1}}`: "no schema of Kafka Connect",
		`[]`: "not an object",
	} {
		e := decodeError(t, m, semel.Message{Value: []byte(value)})
		if e.Class != sink.ClassDecode || !strings.Contains(e.Error(), why) {
			t.Errorf("%s: %s: %v", value, e.Class, e)
		}
	}
}

// connectField is a field of a schema, with a value that it describes.
type connectField struct{ schema, sent, want string }

func TestDebeziumsEncodingsAreUndone(t *testing.T) {
	t.Parallel()
	logical := func(typ, name string) string {
		return fmt.Sprintf(`{"type":%q,"optional":true,"name":%q,"version":1,"field":"f"}`, typ, name)
	}
	decimal := func(scale int) string {
		return fmt.Sprintf(`{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"%d","connect.decimal.precision":"15"},"field":"f"}`, scale)
	}
	bits := func(n int) string {
		return fmt.Sprintf(`{"type":"bytes","name":"io.debezium.data.Bits","parameters":{"length":"%d"},"field":"f"}`, n)
	}
	variable := `{"type":"struct","fields":[{"type":"int32","field":"scale"},{"type":"bytes","field":"value"}],"name":"io.debezium.data.VariableScaleDecimal","field":"f"}`
	for _, f := range []connectField{
		{decimal(5), `"W42A"`, "60.00000"},
		{decimal(5), `"/w=="`, "-0.00001"},
		{decimal(5), `"AA=="`, "0.00000"},
		{decimal(2), `"fw=="`, "1.27"},
		{decimal(2), `"gA=="`, "-1.28"},
		{decimal(10), `"SztMqFqGxHoJiiI//////w=="`, "9999999999999999999999999999.9999999999"},
		{decimal(10), `"tMSzV6V5O4X2dd3AAAAAAQ=="`, "-9999999999999999999999999999.9999999999"},
		{decimal(-3), `"DA=="`, "12000"},
		{decimal(2), `"12.5"`, ""},
		{decimal(2), `12.5`, "12.5"},
		{decimal(2), `null`, "null"},
		{variable, `{"scale":3,"value":"AQ=="}`, "0.001"},
		{variable, `{"scale":0,"value":"/w=="}`, "-1"},
		{variable, `{"scale":0}`, ""},
		{logical("int32", "io.debezium.time.Date"), "20421", "2025-11-29"},
		{logical("int32", "io.debezium.time.Date"), "-735160", "-0043-03-15"}, // 44 BC
		{logical("int64", "io.debezium.time.Timestamp"), "9223372036825200", "infinity"},
		{logical("int64", "org.apache.kafka.connect.data.Timestamp"), "-9223372036832400", "-infinity"},
		{logical("string", "io.debezium.time.IsoDate"), `"2026-03-29Z"`, "2026-03-29"},
		{logical("string", "io.debezium.time.IsoTime"), `"23:59:59.999999Z"`, "23:59:59.999999"},
		{logical("string", "io.debezium.time.IsoTimestamp"), `"2026-03-29T02:30:00.5Z"`, "2026-03-29T02:30:00.5"},
		{logical("string", "io.debezium.time.IsoTimestamp"), `"+294247-01-10T04:00:25.2Z"`, "infinity"},
		{logical("string", "io.debezium.time.IsoTimestamp"), `"-290308-12-21T19:59:27.6Z"`, "-infinity"},
		{logical("string", "io.debezium.time.IsoDate"), "1", ""},
		{logical("struct", "io.debezium.data.geometry.Point"), `{"x":1.5,"y":-2.0,"wkb":"AQ==","srid":null}`, "(1.5,-2.0)"},
		{logical("struct", "io.debezium.data.geometry.Point"), `{"x":1.5}`, ""},
		{bits(12), `"AQ=="`, "000000000001"}, // zeros at the top aren't sent
		{bits(2147483647), `"AQ=="`, "00000001"},
		{logical("int32", "org.apache.kafka.connect.data.Date"), "-1", "1969-12-31"},
		{logical("int64", "io.debezium.time.Timestamp"), "1764460800123", "2025-11-30T00:00:00.123"},
		{logical("int64", "org.apache.kafka.connect.data.Timestamp"), "-1", "1969-12-31T23:59:59.999"},
		{logical("int64", "io.debezium.time.MicroTimestamp"), "1764460800000001", "2025-11-30T00:00:00.000001"},
		{logical("int64", "io.debezium.time.MicroTimestamp"), "9223372036825200000", "infinity"},
		{logical("int64", "io.debezium.time.MicroTimestamp"), "-9223372036832400000", "-infinity"},
		{logical("int64", "io.debezium.time.NanoTimestamp"), "1764460800000000001", "2025-11-30T00:00:00.000000001"},
		{logical("string", "io.debezium.time.ZonedTimestamp"), `"2025-11-30T00:00:00.1Z"`, "2025-11-30T00:00:00.1Z"},
		{logical("int32", "io.debezium.time.Time"), "3723004", "01:02:03.004"},
		{logical("int64", "io.debezium.time.MicroTime"), "86399999999", "23:59:59.999999"},
		{logical("int64", "io.debezium.time.MicroTime"), "-3020399000000", "-838:59:59"},
		{logical("int64", "io.debezium.time.NanoTime"), "1000000001", "00:00:01.000000001"},
		{logical("int64", "io.debezium.time.MicroDuration"), "-1500000", "-1.500000 seconds"},
		{logical("int64", "io.debezium.time.NanoDuration"), "1", ""},
		{logical("int32", "io.debezium.time.Date"), `"2025-11-29"`, ""},
		{logical("int32", "io.debezium.time.Date"), `1.5`, ""},
		{bits(10), `"AQI="`, "1000000001"},
		{bits(2147483647), `"Aw=="`, "00000011"},
		{logical("string", "io.debezium.data.Json"), `"{\"a\": [1.0, \"\\u0041\"]}"`, `{"a": [1.0, "\u0041"]}`},
		{logical("string", "io.debezium.data.Json"), `"{"`, ""},
		{logical("string", "io.debezium.data.Uuid"), `"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"`, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"},
		{`{"type":"array","items":` + decimal(1) + `,"field":"f"}`, `["AQ==",null,"Ag=="]`, "[0.1,null,0.2]"},
		{`{"type":"map","keys":{"type":"string"},"values":` + logical("int32", "io.debezium.time.Date") + `,"field":"f"}`, `{"d":0}`, `{"d":"1970-01-01"}`},
		{`{"type":"struct","fields":[{"type":"int32","field":"n"},` + strings.Replace(decimal(1), `"f"`, `"é\"<"`, 1) + `],"field":"f"}`, `{"n":1,"é\"<":"AQ=="}`, `{"n":1,"é\"<":0.1}`},
	} {
		m := debezium(t, nil, "value.f", "value.g")
		value := fmt.Sprintf(`{"schema":{"type":"struct","fields":[{"type":"struct","fields":[%s,{"type":"int64","field":"g"}],"optional":true,"field":"after"}]},"payload":%s}`,
			f.schema, event("c", "null", `{"f":`+f.sent+`,"g":9007199254740993}`, pgSource))
		var row sink.Row
		switch err := m.Decode(&semel.Message{Value: []byte(value)}, &row); {
		case err != nil && f.want != "":
			t.Errorf("%s of %s: %v", f.sent, f.schema, err)
		case err != nil:
			var d *sink.DecodeError
			if !errors.As(err, &d) || d.Field != "value.f" || d.Class != sink.ClassValue {
				t.Errorf("%s of %s: %v", f.sent, f.schema, err)
			}
		case texts(&row) != f.want+"|9007199254740993":
			t.Errorf("%s of %s became %s, want %s", f.sent, f.schema, texts(&row), f.want)
		}
	}
}

func TestAnUnsentValueIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, sent := range []string{
		`"__debezium_unavailable_value"`, `"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="`,
		`[95,95,100,101,98,101,122,105,117,109,95,117,110,97,118,97,105,108,97,98,108,101,95,118,97,108,117,101]`,
		`[95.0,95.0,100.0,101.0,98.0,101.0,122.0,105.0,117.0,109.0,95.0,117.0,110.0,97.0,118.0,97.0,105.0,108.0,97.0,98.0,108.0,101.0,95.0,118.0,97.0,108.0,117.0,101.0]`,
		`["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]`, `["__debezium_unavailable_value"]`, `{"__debezium_unavailable_value":"__debezium_unavailable_value"}`,
	} {
		msg := semel.Message{Value: []byte(event("u", "null", `{"id":1,"doc":`+sent+`}`, pgSource))}
		e := decodeError(t, debezium(t, nil, "value.id", "value.doc"), msg)
		if e.Class != sink.ClassValue || e.Field != "value.doc" {
			t.Errorf("%s: %v", sent, e)
		}
		var row sink.Row
		if err := debezium(t, nil, "value.id").Decode(&msg, &row); err != nil || texts(&row) != "1" {
			t.Errorf("%s, which nobody takes: %v", sent, err)
		}
		keep := debezium(t, func(c *sink.MappingConfig) { c.KeepUnsent = true }, "value.id", "value.doc")
		if err := keep.Decode(&msg, &row); err != nil || texts(&row) != "1|absent" {
			t.Errorf("%s, kept: %s, %v", sent, texts(&row), err)
		}
	}
	// A text that merely speaks of it.
	var row sink.Row
	if err := debezium(t, nil, "value.doc").Decode(&semel.Message{Value: []byte(event("u", "null", `{"doc":"see __debezium_unavailable_value"}`, pgSource))}, &row); err != nil || texts(&row) != "see __debezium_unavailable_value" {
		t.Errorf("%s, %v", texts(&row), err)
	}
}

func TestPositionsRiseWithTheSourcesLog(t *testing.T) {
	t.Parallel()
	mysql := func(file, pos, row string) string {
		return fmt.Sprintf(`{"connector":"mysql","ts_ms":1,"server_id":5,"file":"binlog.%s","pos":%s,"row":%s,"snapshot":"false"}`, file, pos, row)
	}
	mssql := func(commit, change, serial string) string {
		return fmt.Sprintf(`{"connector":"sqlserver","ts_ms":1,"commit_lsn":%q,"change_lsn":%s,"event_serial_no":%s}`, commit, change, serial)
	}
	oracle := func(scn, rs, ssn string) string {
		return fmt.Sprintf(`{"connector":"oracle","ts_ms":1,"scn":%q,"commit_scn":"99","rs_id":%q,"ssn":%s}`, scn, rs, ssn)
	}
	for name, sources := range map[string][]string{
		"postgresql": {strings.ReplaceAll(pgSource, "120", "119"), pgSource, strings.ReplaceAll(pgSource, "120", "18446744073709551615")},
		"mysql":      {mysql("000009", "4294967295", "0"), mysql("000010", "4", "0"), mysql("000010", "4", "1"), mysql("000010", "5", "0"), mysql("1000000", "4", "0")},
		"sqlserver": {
			mssql("00000027:00000ac0:0002", "null", "null"), mssql("00000027:00000ac0:0002", `"00000027:00000ac0:0001"`, "1"),
			mssql("00000027:00000ac0:0002", `"00000027:00000ac0:0001"`, "2"), mssql("00000027:00000ac0:0003", `"00000001:00000ac0:0001"`, "1"),
		},
		"oracle": {oracle("12", "", "0"), oracle("13", " 0x00000a.00000123.0010 ", "0"), oracle("13", " 0x00000a.00000123.0010 ", "1"), oracle("13", " 0x00000a.00000124.0000 ", "0")},
	} {
		m := debezium(t, nil, "envelope.position")
		last := ""
		for _, s := range sources {
			var row sink.Row
			if err := m.Decode(&semel.Message{Value: []byte(event("u", "null", "{}", s))}, &row); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
			now := texts(&row)
			if len(now) < len(last) || len(now) == len(last) && now <= last {
				t.Errorf("%s: %s after %s", name, now, last)
			}
			last = now
		}
	}
	e := decodeError(t, debezium(t, nil, "envelope.position"), semel.Message{Value: []byte(event("u", "null", "{}", `{"connector":"mongodb","ts_ms":1,"ord":1}`))})
	if e.Class != sink.ClassValue || !strings.Contains(e.Error(), "mongodb") {
		t.Error(e)
	}
}

func BenchmarkDebezium(b *testing.B) {
	after := `{"id":7,"total":12.50,"note":"a note of some length","at":"2025-11-30T00:00:00Z"}`
	m := debezium(b, nil, "value.id", "value.total", "value.note", "value.at")
	benchmarkDecode(b, m, event("u", after, after, pgSource))
}

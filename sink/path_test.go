package sink_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/semelhq/semel/sink"
)

func TestSelectionsAreExactPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in    string
		root  sink.Root
		names []string
		out   string
	}{
		{"value", sink.RootValue, nil, "value"},
		{" value . order.id ", sink.RootValue, []string{"order", "id"}, "value.order.id"},
		{`value["x y"].b`, sink.RootValue, []string{"x y", "b"}, `value["x y"].b`},
		{`value['it''s']`, 0, nil, ""},
		{`value['a"\\\u00e9']`, sink.RootValue, []string{`a"\é`}, `value["a\"\\é"]`},
		{`value["a"]["b"]`, sink.RootValue, []string{"a", "b"}, "value.a.b"},
		{`value["Ключ"]`, sink.RootValue, []string{"Ключ"}, `value["Ключ"]`},
		{"key", sink.RootKey, nil, "key"},
		{"key.id", sink.RootKey, []string{"id"}, "key.id"},
		{"headers.trace", sink.RootHeaders, []string{"trace"}, "headers.trace"},
		{`headers["message-id"]`, sink.RootHeaders, []string{"message-id"}, `headers["message-id"]`},
		{"timestamp", sink.RootTimestamp, nil, "timestamp"},
		{"topic", sink.RootTopic, nil, "topic"},
		{"partition", sink.RootPartition, nil, "partition"},
		{"offset", sink.RootOffset, nil, "offset"},
	} {
		p, err := sink.ParsePath(c.in)
		if c.root == 0 {
			if err == nil {
				t.Errorf("%s: no error", c.in)
			}
			continue
		}
		if err != nil || p.Root != c.root || !slices.Equal(p.Names, c.names) || p.String() != c.out {
			t.Errorf("%s: %v %q %s (%v)", c.in, p.Root, p.Names, p, err)
		}
	}
}

func TestOtherExpressionsAreRefusedWithTheirColumn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in       string
		column   int
		computed bool
	}{
		{"value.a + 1", 9, true},
		{`value.a != "draft"`, 9, true},
		{"size(value)", 1, true},
		{"value.a.size()", 13, true},
		{"value[0]", 7, true},
		{"value[key]", 7, true},
		{"1", 1, true},
		{`"text"`, 1, true},
		{"true", 1, true},
		{"!value.a", 1, true},
		{`value["é"] == 1`, 12, true},
		{"value ? 1 : 2", 7, true},
		{"(value)", 1, true},
		{"", 1, false},
		{"  ", 3, false},
		{"valu.a", 1, false},
		{"order.id", 1, false},
		{"value.", 7, false},
		{"value..a", 7, false},
		{"value.1", 7, false},
		{"value.ключ", 7, false},
		{`value["a`, 7, false},
		{`value["a"`, 10, false},
		{`value["\q"]`, 8, false},
		{"headers", 8, false},
		{"headers.a.b", 8, false},
		{"timestamp.x", 10, false},
		{"é", 1, false},
		{"value.a\xff", 1, false},
	} {
		_, err := sink.ParsePath(c.in)
		var e *sink.ExprError
		if !errors.As(err, &e) || e.Column != c.column || e.Computed != c.computed {
			t.Errorf("%s: %v", c.in, err)
		}
	}
}

func FuzzPathsRoundTrip(f *testing.F) {
	for _, s := range []string{"value", `value["a\"b"].c`, "headers.x", `key['\u0041']`, "value.a + 1", "value[0]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		p, err := sink.ParsePath(in)
		if err != nil {
			var e *sink.ExprError
			if !errors.As(err, &e) || e.Column < 1 || e.Column > len(in)+1 {
				t.Fatalf("%q: %v", in, err)
			}
			return
		}
		q, err := sink.ParsePath(p.String())
		if err != nil || !slices.Equal(p.Names, q.Names) || p.Root != q.Root {
			t.Fatalf("%q: %q, %q, %v", in, p, q, err)
		}
	})
}

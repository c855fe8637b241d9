package sink_test

import (
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/sink"
)

func idOf(t *testing.T, m *sink.Mapping, msg semel.Message) (semel.ID, string, error) {
	t.Helper()
	var row sink.Row
	if err := m.Decode(&msg, &row); err != nil {
		t.Fatalf("%s: %v", msg.Value, err)
	}
	id, err := m.ID(&msg, &row)
	return id, m.Sent(&msg, &row), err
}

func byFields(t *testing.T, topic bool, exprs ...string) *sink.Mapping {
	cfg := sink.MappingConfig{TopicInID: topic, Columns: sink.ByName([]string{"x"})}
	for _, e := range exprs {
		cfg.ID = append(cfg.ID, path(t, e))
	}
	return newMapping(t, cfg)
}

func TestEqualTextsAreOneID(t *testing.T) {
	t.Parallel()
	one := byFields(t, false, "value.a")
	same := [][]string{
		{`{"a":"k1"}`, `{"a":"\u006b1","x":2}`},
		{`{"a":42}`, `{"a":"42"}`, `{ "a" : 42 }`},
		{`{"a":1e3}`, `{"a":1E3}`, `{"a":1e+3}`, `{"a":1E+003}`},
		{`{"a":1.50e-7}`, `{"a":1.50E-07}`},
		{`{"a":1.0}`},
		{`{"a":1}`},
		{`{"a":1000}`},
		{`{"a":"1E3"}`},
		{`{"a":true}`, `{"a":"true"}`},
		{`{"a":"0193b1f0-7c55-7b5e-9a55-0a2f4c3b2a10"}`, `{"a":"0193B1F0-7C55-7B5E-9A55-0A2F4C3B2A10"}`},
	}
	seen := map[semel.ID]int{}
	for group, ins := range same {
		for _, in := range ins {
			id, _, err := idOf(t, one, semel.Message{Value: []byte(in)})
			if err != nil {
				t.Fatal(err)
			}
			if g, ok := seen[id]; ok && g != group {
				t.Errorf("%s has the ID of another", in)
			} else if !ok && in != ins[0] {
				t.Errorf("%s and %s differ", in, ins[0])
			}
			seen[id] = group
		}
	}
	id, sent, _ := idOf(t, one, semel.Message{Value: []byte(same[len(same)-1][0])})
	if id.String() != sent {
		t.Errorf("a UUID became %s", id)
	}
}

func TestPartsOfAnIDCanNotRunTogether(t *testing.T) {
	t.Parallel()
	m := byFields(t, false, "value.a", "value.b.c")
	x, sent, err := idOf(t, m, semel.Message{Value: []byte(`{"a":"a","b":{"c":"bc"}}`)})
	if err != nil || sent != "a|bc" {
		t.Fatal(sent, err)
	}
	y, _, _ := idOf(t, m, semel.Message{Value: []byte(`{"b":{"c":"c"},"a":"ab"}`)})
	if x == y {
		t.Error("(a, bc) is (ab, c)")
	}
	if want := semel.IDOf([]byte("a"), []byte("bc")); x != want {
		t.Errorf("%s, want %s", x, want)
	}
	if _, _, err := idOf(t, m, semel.Message{Value: []byte(`{"a":"a","b":{"c":""}}`)}); err != nil {
		t.Errorf("an empty part of several: %v", err)
	}
}

func TestTheTopicIsPartOfAnIDOfSeveralTopics(t *testing.T) {
	t.Parallel()
	m := byFields(t, true, "value.a")
	x, _, _ := idOf(t, m, semel.Message{Topic: "t1", Value: []byte(`{"a":1}`)})
	y, _, _ := idOf(t, m, semel.Message{Topic: "t2", Value: []byte(`{"a":1}`)})
	if x == y || x == (semel.ID{}) {
		t.Error("one number in two topics is one ID")
	}
}

func TestMissingIDsSayWhichFieldIsMissing(t *testing.T) {
	t.Parallel()
	m := byFields(t, false, "value.a")
	for _, in := range []string{`{}`, `{"a":null}`, `{"a":""}`, `{"a":{}}`, `{"a":[1]}`} {
		_, _, err := idOf(t, m, semel.Message{Value: []byte(in)})
		var d *sink.DecodeError
		if !errors.Is(err, semel.ErrMissingID) || !errors.As(err, &d) || d.Class != sink.ClassMissingID || d.Field != "value.a" {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestTombstonesHaveIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	m := byFields(t, false, "value.a")
	x, sent, err := idOf(t, m, semel.Message{Topic: "t", Key: []byte("k")})
	if err != nil || sent != "k" || x.IsZero() {
		t.Fatal(x, sent, err)
	}
	for _, other := range []semel.Message{{Topic: "t", Key: []byte("l")}, {Topic: "u", Key: []byte("k")}, {Topic: "t", Value: []byte(`{"a":"k"}`)}} {
		if y, _, _ := idOf(t, m, other); x == y {
			t.Errorf("%v has the same ID", other)
		}
	}
	if _, _, err := idOf(t, m, semel.Message{Topic: "t"}); !errors.Is(err, semel.ErrMissingID) {
		t.Errorf("neither key nor value: %v", err)
	}
}

func TestTheRuleWithoutAMappingGivesTheSameID(t *testing.T) {
	t.Parallel()
	fields := []sink.Path{path(t, "value.a"), path(t, "headers.h")}
	rule, err := sink.FieldsID(fields, sink.KeyText, true)
	if err != nil {
		t.Fatal(err)
	}
	m := newMapping(t, sink.MappingConfig{Columns: sink.ByName([]string{"a", "b"}), ID: fields, TopicInID: true})
	msg := semel.Message{Topic: "t", Value: []byte(`{"a":1}`), Headers: []semel.Header{{Name: "h", Value: []byte("v")}}}
	want, sent, err := idOf(t, m, msg)
	if err != nil {
		t.Fatal(err)
	}
	got, err := rule.Of(&msg)
	if err != nil || got != want || rule.Sent(&msg) != sent || rule.Name != m.IDName() || rule.Name != "fields value.a, headers.h with topic" {
		t.Errorf("%s %q %v %q", got, rule.Sent(&msg), err, rule.Name)
	}
	if _, err := rule.Of(&semel.Message{Value: []byte("x")}); err == nil || errors.Is(err, semel.ErrMissingID) {
		t.Errorf("a text that is no JSON: %v", err)
	}
}

func TestDigestsAreEqualForHonestRepeats(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "value.b", "topic")
	groups := [][]string{
		{`{"a":1,"b":"x"}`, `{"b":"\u0078","sent":7,"a":1}`, `{"a":1.0,"b":"x"}`, `{"a":10e-1,"b":"x"}`},
		{`{"a":"1","b":"x"}`},
		{`{"a":2,"b":"x"}`},
		{`{"a":-1,"b":"x"}`},
		{`{"a":10,"b":"x"}`},
		{`{"a":0.1,"b":"x"}`},
		{`{"a":null,"b":"x"}`, `{"b":"x"}`},
		{`{"a":"","b":"x"}`},
		{`{"a":"x"}`},
		{`{"a":"x","b":""}`},
		{`{"b":"x","a":[]}`},
		{`{"b":"x","a":{}}`},
		{`{"a":{"k":1,"l":[1,2,{"m":null}]}}`, `{"a":{ "l" : [1.0, 2 , {"\u006d" : null} ], "k":1e0 }}`},
		{`{"a":{"k":1,"l":[2,1,{"m":null}]}}`},
		{`{"a":{"k":1,"l":[1,2,{"m":false}]}}`},
		{`{"a":{"l":1,"k":[1,2,{"m":null}]}}`},
		{`{"a":[[1],2]}`},
		{`{"a":[1,[2]]}`},
		{`{"a":[1,2]}`},
		{`{"a":0}`, `{"a":-0.0}`, `{"a":0e5}`},
		{`{"a":false}`},
		{`{"a":true}`},
		{`{"a":"abcdefgh"}`},
		{`{"a":"abcdefg"}`},
		{`{"a":"abcdefg\u0000"}`},
		{`{"a":123456789.123456789}`, `{"a":12345678912345678900e-11}`},
		{`{"a":12345678.9123456789}`},
	}
	seen := map[[16]byte]string{}
	for _, g := range groups {
		first := decode(t, m, g[0])
		want := first.Digest()
		if other, ok := seen[want]; ok {
			t.Errorf("%s has the digest of %s", g[0], other)
		}
		seen[want] = g[0]
		for _, in := range g[1:] {
			if row := decode(t, m, in); row.Digest() != want {
				t.Errorf("%s and %s differ", in, g[0])
			}
		}
	}
}

func TestAPlaceIsNoPartOfADigest(t *testing.T) {
	t.Parallel()
	m := mapping(t, "value.a", "timestamp", "partition", "offset")
	var first, again, other sink.Row
	message := semel.Message{Value: []byte(`{"a":1}`), Timestamp: time.UnixMilli(5), Partition: 1, Offset: 7}
	repeat := semel.Message{Value: []byte(`{"a":1}`), Timestamp: time.UnixMilli(9), Partition: 2, Offset: 3}
	for row, msg := range map[*sink.Row]*semel.Message{&first: &message, &again: &repeat, &other: {Value: []byte(`{"a":2}`), Timestamp: message.Timestamp, Partition: 1, Offset: 7}} {
		if err := m.Decode(msg, row); err != nil {
			t.Fatal(err)
		}
	}
	if first.Digest() != again.Digest() {
		t.Error("a repeat differs from its message")
	}
	if first.Digest() == other.Digest() {
		t.Error("another message has the same digest")
	}
}

// What is stored must be found by a later version.
func TestDigestsNeverChange(t *testing.T) {
	t.Parallel()
	row := decode(t, mapping(t, "value.a", "value.b", "value.c"), `{"a":1.5,"b":"text","c":{"x":[true,null]}}`)
	d := row.Digest()
	if got := hex.EncodeToString(d[:]); got != "a08ab131b10ed77738e842ce87360d95" {
		t.Errorf("digest %s", got)
	}
}

package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/semelhq/semel"
)

// CloudEvents is the step for events of the CloudEvents specification, in both
// ways in which Kafka carries them: value is the event's data, envelope its
// attributes (envelope.id, envelope.source, envelope.type, extensions).
//
// Binary: attributes are headers ce_…, the message's value is the data.
// Structured: the message's value is the event, as JSON. Data must be a JSON
// object, as values are. A batch of events is refused. A message that has neither
// a value nor such headers is a tombstone like any other.
type CloudEvents struct {
	scanners sync.Pool
}

// NewCloudEvents makes the step.
func NewCloudEvents() *CloudEvents {
	c := &CloudEvents{}
	c.scanners.New = func() any { return newScanner(cloudEvent.nodes) }
	return c
}

// retype finds the data in an event that is all of the message.
func (c *CloudEvents) retype(t *Type) *Type {
	if t.Field("specversion") != nil {
		return t.Field("data")
	}
	return t
}

// Attributes of an event that decide what its data is.
const (
	ceVersion = iota
	ceData
	ceBase64
	ceType
	ceSlots
)

var cloudEvent = func() *tree {
	t := newTree("value")
	for i, name := range []string{"specversion", "data", "data_base64", "datacontenttype"} {
		t.add(Path{Root: RootValue, Names: []string{name}}, i)
	}
	return t
}()

// Open implements [Opener].
func (c *CloudEvents) Open(m *semel.Message, o *Opened) error {
	if _, binary := m.Header("ce_specversion"); binary {
		return c.binary(m, o)
	}
	if o.Value == nil {
		return nil
	}
	kind, _ := m.Header("content-type")
	if bytes.HasPrefix(kind, []byte("application/cloudevents-batch")) {
		return &DecodeError{Class: ClassDecode, Field: "value", Why: "a batch of CloudEvents: send one event a message"}
	}
	var slots [ceSlots]Value
	s := c.scanners.Get().(*scanner)
	err := s.scan(o.Value, cloudEvent, slots[:], true)
	c.scanners.Put(s)
	if err != nil {
		return err
	}
	if slots[ceVersion].Kind != String {
		return &DecodeError{Class: ClassDecode, Field: "value", Why: "no CloudEvent: neither header ce_specversion nor field specversion"}
	}
	data, encoded := slots[ceData], slots[ceBase64]
	o.Envelope, o.Value = o.Value, nil
	switch {
	case !data.IsNull() && !encoded.IsNull():
		return &DecodeError{Class: ClassDecode, Field: "value", Why: "both data and data_base64"}
	case !data.IsNull():
		o.Value = data.Raw
	case encoded.Kind == String:
		if kind := string(slots[ceType].Text(nil)); kind != "" && !isJSON(kind) {
			return &DecodeError{Class: ClassDecode, Field: "value.data_base64", Why: "data of type " + quote([]byte(kind)) + ", not JSON"}
		}
		o.Value, err = o.Append(func(dst []byte) ([]byte, error) {
			return base64.StdEncoding.AppendDecode(dst, encoded.Text(nil))
		})
		if err != nil {
			return &DecodeError{Class: ClassDecode, Field: "value.data_base64", Why: "no base64"}
		}
	case !encoded.IsNull():
		return &DecodeError{Class: ClassDecode, Field: "value.data_base64", Why: "no text but " + encoded.Kind.article()}
	}
	return nil
}

// isJSON says whether a media type is one of JSON.
func isJSON(kind string) bool {
	kind, _, _ = strings.Cut(strings.ToLower(kind), ";")
	kind = strings.TrimSpace(kind)
	return strings.HasSuffix(kind, "/json") || strings.HasSuffix(kind, "+json")
}

// binary makes an object of the headers; of repeated ones the last counts.
func (c *CloudEvents) binary(m *semel.Message, o *Opened) (err error) {
	o.Envelope, err = o.Append(func(dst []byte) ([]byte, error) {
		dst = append(dst, '{')
		for i, h := range m.Headers {
			name, attribute := strings.CutPrefix(h.Name, "ce_")
			if !attribute && h.Name == "content-type" {
				name, attribute = "datacontenttype", true
			}
			if !attribute || h.Value == nil || repeated(m.Headers[i+1:], h.Name) {
				continue
			}
			if !utf8.Valid(h.Value) {
				return dst, &DecodeError{Class: ClassValue, Field: Path{Root: RootHeaders, Names: []string{h.Name}}.String(), Why: "not valid UTF-8"}
			}
			if len(dst) > 1 {
				dst = append(dst, ',')
			}
			dst = appendString(dst, name)
			dst = append(dst, ':')
			dst = appendString(dst, string(h.Value))
		}
		return append(dst, '}'), nil
	})
	return err
}

func repeated(hs []semel.Header, name string) bool {
	for _, h := range hs {
		if h.Name == name {
			return true
		}
	}
	return false
}

// appendString writes valid UTF-8 as a JSON string.
func appendString(dst []byte, s string) []byte {
	text, _ := json.Marshal(s)
	return append(dst, text...)
}

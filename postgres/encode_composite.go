package postgres

import (
	"errors"

	"github.com/semelhq/semel/sink"
)

var errEncodeAttribute = errors.New("a field that the composite type has no attribute for")

// encodeComposite takes an object whose fields are named like the type's
// attributes, each as exact as a column of its type; what is absent is null. A text
// is the type's own form.
type encodeComposite struct {
	names      []string
	attributes []encoder
	other      encodeAny
}

func newEncodeComposite(attributes []introspectColumn, cfg encodeConfig) encodeComposite {
	e := encodeComposite{other: encodeAny{cfg.strip}}
	for i := range attributes {
		enc, _ := newEncoder(&attributes[i], cfg)
		e.names = append(e.names, attributes[i].name)
		e.attributes = append(e.attributes, enc)
	}
	return e
}

func (e encodeComposite) binary(dst []byte, v sink.Value) ([]byte, error) { return e.text(dst, v) }

// text is a row literal; everything but null is quoted.
func (e encodeComposite) text(dst []byte, v sink.Value) ([]byte, error) {
	if v.Kind != sink.Object {
		return e.other.text(dst, v)
	}
	var few [16]sink.Value
	values := append(few[:0], make([]sink.Value, len(e.names))...)
	for name, value := range v.Members() {
		i := e.index(name)
		if i < 0 {
			return dst, errEncodeAttribute
		}
		values[i] = value
	}
	dst = append(dst, '(')
	for i, value := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		if value.IsNull() {
			continue
		}
		var buf [64]byte
		text, err := e.attributes[i].text(buf[:0], value)
		if err != nil {
			return dst, err
		}
		dst = append(dst, '"')
		for _, c := range text {
			if c == '"' || c == '\\' {
				dst = append(dst, c)
			}
			dst = append(dst, c)
		}
		dst = append(dst, '"')
	}
	return append(dst, ')'), nil
}

func (e encodeComposite) index(name sink.Value) int {
	var buf [64]byte
	text := name.Text(buf[:0])
	for i, n := range e.names {
		if n == string(text) {
			return i
		}
	}
	return -1
}

package sink

import (
	"errors"

	"github.com/semelhq/semel"
)

// Decoder is a format: it appends what data says to dst, as an exact JSON text.
// What it has appended when there is an error is worth nothing. A
// *semel.OutageError says nothing about the data; every other error is about it.
//
// A Decoder may be used from several goroutines.
type Decoder interface {
	AppendJSON(dst, data []byte) ([]byte, error)
}

// FieldDecoder is a Decoder that says where fields stand in what it appends, so that
// nobody has to read the text again.
type FieldDecoder interface {
	Decoder
	// AppendFields appends the values of an object's fields alone, as AppendJSON
	// writes them. spans[i] becomes where in the result the value of names[i] begins
	// and ends; the end of a field that isn't there is 0. other is how many more fields the
	// object has. Below 0 nothing is known of fields, and the text is AppendJSON's.
	//
	// names are always the same slice of a caller, who doesn't change it.
	AppendFields(dst, data []byte, names []string, spans []Span) (out []byte, other int, err error)
}

// Span is a stretch of a text.
type Span = [2]int

// Formats is the step that rewrites values by one decoder and keys by another; a
// nil one leaves them as they are. What is not there is not read: a message
// without a value stays one.
func Formats(value, key Decoder) Opener { return formats{value, key} }

type formats struct{ value, key Decoder }

func (f formats) Open(_ *semel.Message, o *Opened) (err error) {
	if f.value != nil && o.Value != nil {
		if t, ok := f.value.(Typed); ok && o.typed {
			o.Type = t.TypeOf(o.Value)
		}
		if err := f.open(o); err != nil {
			return err
		}
	}
	if f.key != nil && o.Key != nil {
		o.Key, err = decoded(o, f.key, o.Key, "key")
	}
	return err
}

// open reads the value: its fields, where they are what is taken of it.
func (f formats) open(o *Opened) (err error) {
	d, ok := f.value.(FieldDecoder)
	if !ok || o.fields == nil {
		o.Value, err = decoded(o, f.value, o.Value, "value")
		return err
	}
	clear(o.spans)
	out, err := o.Append(func(dst []byte) (out []byte, err error) {
		out, o.other, err = d.AppendFields(dst, o.Value, o.fields, o.spans)
		return out, err
	})
	if err != nil {
		return undecoded(err, "value")
	}
	o.Value, o.located = out, o.other >= 0
	return nil
}

func decoded(o *Opened, d Decoder, data []byte, field string) ([]byte, error) {
	out, err := o.Append(func(dst []byte) ([]byte, error) { return d.AppendJSON(dst, data) })
	if err == nil {
		return out, nil
	}
	return nil, undecoded(err, field)
}

// undecoded is apart, for what errors.As looks into is allocated.
func undecoded(err error, field string) error {
	var outage *semel.OutageError
	if errors.As(err, &outage) {
		return err
	}
	return &DecodeError{Class: ClassDecode, Field: field, Why: err.Error(), Err: err}
}

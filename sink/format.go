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

// Formats is the step that rewrites values by one decoder and keys by another; a
// nil one leaves them as they are. What is not there is not read: a message
// without a value stays one.
func Formats(value, key Decoder) Opener { return formats{value, key} }

type formats struct{ value, key Decoder }

func (f formats) Open(_ *semel.Message, o *Opened) (err error) {
	if f.value != nil && o.Value != nil {
		if o.Value, err = decoded(o, f.value, o.Value, "value"); err != nil {
			return err
		}
	}
	if f.key != nil && o.Key != nil {
		o.Key, err = decoded(o, f.key, o.Key, "key")
	}
	return err
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

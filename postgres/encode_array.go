package postgres

import (
	"encoding/binary"

	"github.com/semelhq/semel/sink"
)

// encodeArray takes JSON arrays; those inside one another make dimensions, which
// must be of one length side by side. An empty array is an empty array, not
// null.
type encodeArray struct {
	elem encoder
	oid  uint32
}

// encodeMaxDimensions is PostgreSQL's limit.
const encodeMaxDimensions = 6

// shape reads the length of each dimension along the first elements. Whether all
// others agree is found while they are written.
func (e encodeArray) shape(v sink.Value) (dims []int) {
	for v.Kind == sink.Array && len(dims) <= encodeMaxDimensions {
		n := 0
		var first sink.Value
		for el := range v.Elements() {
			if n == 0 {
				first = el
			}
			n++
		}
		if n == 0 {
			return append(dims, 0)
		}
		dims = append(dims, n)
		if e.wholeDocuments() {
			return dims
		}
		v = first
	}
	return dims
}

// wholeDocuments says that elements may be arrays themselves: those of json[].
func (e encodeArray) wholeDocuments() bool { _, is := e.elem.(encodeJSON); return is }

// binary: dimensions, a flag for nulls, the element's type, then length and lower
// bound of each dimension, then the elements with their lengths.
func (e encodeArray) binary(dst []byte, v sink.Value) ([]byte, error) {
	if v.Kind != sink.Array {
		return dst, errEncodeArray
	}
	dims := e.shape(v)
	last := len(dims) - 1
	if last >= encodeMaxDimensions || dims[last] == 0 && last > 0 {
		return dst, errEncodeShape
	}
	if dims[last] == 0 {
		dims = nil
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(dims)))
	flag := len(dst)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, e.oid)
	for _, n := range dims {
		dst = binary.BigEndian.AppendUint32(dst, uint32(n))
		dst = binary.BigEndian.AppendUint32(dst, 1)
	}
	if dims == nil {
		return dst, nil
	}
	return e.elements(dst, v, dims, flag)
}

func (e encodeArray) elements(dst []byte, v sink.Value, dims []int, flag int) ([]byte, error) {
	if v.Kind != sink.Array {
		return dst, errEncodeShape
	}
	n := 0
	var err error
	for el := range v.Elements() {
		n++
		switch {
		case len(dims) > 1:
			dst, err = e.elements(dst, el, dims[1:], flag)
		case el.Kind == sink.Null:
			dst[flag+3] = 1
			dst = append(dst, 255, 255, 255, 255)
		case el.Kind == sink.Array && !e.wholeDocuments():
			err = errEncodeShape
		default:
			at := len(dst)
			dst, err = e.elem.binary(append(dst, 0, 0, 0, 0), el)
			binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
		}
		if err != nil {
			return dst, err
		}
	}
	if n != dims[0] {
		return dst, errEncodeShape
	}
	return dst, nil
}

// text is an array literal; everything but null is quoted.
func (e encodeArray) text(dst []byte, v sink.Value) ([]byte, error) {
	if v.Kind != sink.Array {
		return dst, errEncodeArray
	}
	dst = append(dst, '{')
	first := true
	var err error
	for el := range v.Elements() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		switch {
		case el.Kind == sink.Null:
			dst = append(dst, "NULL"...)
		case el.Kind == sink.Array && !e.wholeDocuments():
			dst, err = e.text(dst, el)
		default:
			var buf [64]byte
			var b []byte
			b, err = e.elem.text(buf[:0], el)
			dst = append(dst, '"')
			for _, c := range b {
				if c == '"' || c == '\\' {
					dst = append(dst, '\\')
				}
				dst = append(dst, c)
			}
			dst = append(dst, '"')
		}
		if err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

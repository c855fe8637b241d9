package postgres

import (
	"encoding/base64"
	"encoding/hex"

	"github.com/semelhq/semel/sink"
)

// encodeBytea takes standard base64 with padding, as JSON usually carries bytes,
// or \x and hexadecimal digits, as PostgreSQL writes them. The two can't be
// confused: base64 has no backslash.
type encodeBytea struct{}

func (encodeBytea) binary(dst []byte, v sink.Value) ([]byte, error) {
	switch v.Kind {
	case sink.Bytes:
		return append(dst, v.Raw...), nil
	case sink.String, sink.Text:
	default:
		return dst, errEncodeBytea
	}
	text := v.Text(nil)
	var out []byte
	var err error
	if len(text) >= 2 && text[0] == '\\' && text[1] == 'x' {
		out, err = hex.AppendDecode(dst, text[2:])
	} else {
		for _, c := range text {
			if c == '\n' || c == '\r' { // the decoder would skip them
				return dst, errEncodeBytea
			}
		}
		out, err = base64.StdEncoding.Strict().AppendDecode(dst, text)
	}
	if err != nil {
		return dst, errEncodeBytea
	}
	return out, nil
}

func (e encodeBytea) text(dst []byte, v sink.Value) ([]byte, error) {
	raw, err := e.binary(nil, v)
	if err != nil {
		return dst, err
	}
	return hex.AppendEncode(append(dst, '\\', 'x'), raw), nil
}

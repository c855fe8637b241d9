package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"sync"
	"time"
)

// connectType is what a schema of Kafka Connect says about a value: how it was
// put into JSON, and so what it was. nil: it is what it looks like.
//
// Decimals (base64 and a scale) become numbers, digit by digit. Times become
// texts without a zone, as the source's columns had none (those with a zone are
// texts already); durations become seconds; bits become zeros and ones; JSON
// that was sent as a text becomes the document; points become (x,y).
type connectType struct {
	kind   connectKind
	scale  int
	fields map[string]*connectType // of a struct
	items  *connectType            // of arrays and maps
	deep   bool                    // something in it has to be converted
	typ    *Type                   // of a whole schema: what it says
}

type connectKind uint8

const (
	connectPlain connectKind = iota
	connectStruct
	connectArray
	connectMap
	connectDecimal
	connectVariable
	connectDays
	connectStamp // scale: how many digits a second has
	connectClock
	connectDuration
	connectBits // scale: how many
	connectJSON
	connectPoint
	connectWall // a text in which a Z stands, though the source has no zone
)

// connectNames are the logical types that are not what they look like.
var connectNames = map[string]connectType{
	"org.apache.kafka.connect.data.Decimal":   {kind: connectDecimal},
	"org.apache.kafka.connect.data.Date":      {kind: connectDays},
	"org.apache.kafka.connect.data.Time":      {kind: connectClock, scale: 3},
	"org.apache.kafka.connect.data.Timestamp": {kind: connectStamp, scale: 3},
	"io.debezium.data.VariableScaleDecimal":   {kind: connectVariable},
	"io.debezium.time.Date":                   {kind: connectDays},
	"io.debezium.time.Time":                   {kind: connectClock, scale: 3},
	"io.debezium.time.MicroTime":              {kind: connectClock, scale: 6},
	"io.debezium.time.NanoTime":               {kind: connectClock, scale: 9},
	"io.debezium.time.Timestamp":              {kind: connectStamp, scale: 3},
	"io.debezium.time.MicroTimestamp":         {kind: connectStamp, scale: 6},
	"io.debezium.time.NanoTimestamp":          {kind: connectStamp, scale: 9},
	"io.debezium.time.MicroDuration":          {kind: connectDuration, scale: 6},
	"io.debezium.time.NanoDuration":           {kind: connectDuration, scale: 9},
	"io.debezium.time.IsoDate":                {kind: connectWall},
	"io.debezium.time.IsoTime":                {kind: connectWall},
	"io.debezium.time.IsoTimestamp":           {kind: connectWall},
	"io.debezium.data.Bits":                   {kind: connectBits},
	"io.debezium.data.Json":                   {kind: connectJSON},
	"io.debezium.data.geometry.Point":         {kind: connectPoint},
}

// connectSchema is a schema as JsonConverter writes it.
type connectSchema struct {
	Type       string            `json:"type"`
	Name       string            `json:"name"`
	Field      string            `json:"field"`
	Fields     []connectSchema   `json:"fields"`
	Items      *connectSchema    `json:"items"`
	Keys       *connectSchema    `json:"keys"`
	Values     *connectSchema    `json:"values"`
	Parameters map[string]string `json:"parameters"`
}

func (s *connectSchema) compile() (*connectType, error) {
	if t, ok := connectNames[s.Name]; ok {
		parameter := ""
		switch t.kind {
		case connectDecimal:
			parameter = "scale"
		case connectBits:
			parameter = "length"
		}
		if parameter != "" {
			n, err := strconv.Atoi(s.Parameters[parameter])
			if err != nil || n < -maxScale || n > maxScale && t.kind == connectDecimal {
				return nil, fmt.Errorf("the %s of %s is %q", parameter, s.Name, s.Parameters[parameter])
			}
			t.scale = n
		}
		t.deep = true
		return &t, nil
	}
	var err error
	t := &connectType{}
	switch {
	case s.Type == "struct":
		t.kind, t.fields = connectStruct, map[string]*connectType{}
		for i := range s.Fields {
			f, err := s.Fields[i].compile()
			if err != nil {
				return nil, err
			}
			if f.converts() || f != nil && f.kind == connectStruct {
				t.fields[s.Fields[i].Field] = f
				t.deep = t.deep || f.converts()
			}
		}
		return t, nil
	case s.Type == "array" && s.Items != nil:
		t.kind = connectArray
		t.items, err = s.Items.compile()
	case s.Type == "map" && s.Values != nil && s.Keys != nil && s.Keys.Type == "string":
		t.kind = connectMap
		t.items, err = s.Values.compile()
	default:
		return nil, nil
	}
	t.deep = t.items.converts()
	return t, err
}

// maxScale is beyond what numeric columns hold.
const maxScale = 1 << 15

// connectSchemas compiles each schema once.
type connectSchemas struct {
	mu sync.RWMutex
	by map[string]*connectType
}

func (c *connectSchemas) of(text []byte) (*connectType, error) {
	c.mu.RLock()
	t, ok := c.by[string(text)]
	c.mu.RUnlock()
	if ok {
		return t, nil
	}
	var s connectSchema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, errors.New("no schema of Kafka Connect")
	}
	t, err := s.compile()
	if err != nil {
		return nil, err
	}
	if t != nil {
		t.typ = s.typ()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.by) >= 1000 { // schemas of a stream are few; this one makes them up
		c.by = nil
	}
	if c.by == nil {
		c.by = map[string]*connectType{}
	}
	c.by[string(text)] = t
	return t, nil
}

func (t *connectType) converts() bool { return t != nil && t.deep }

// unquoted is a name of a checked JSON text.
func unquoted(name []byte) []byte {
	name = name[1 : len(name)-1]
	if bytes.IndexByte(name, '\\') < 0 {
		return name
	}
	return appendUnescaped(nil, name)
}

// field is the type of a struct's field; nil where nothing is to be done.
func (t *connectType) field(name string) *connectType {
	if t == nil {
		return nil
	}
	return t.fields[name]
}

// append writes the value as it was; field is its name for errors.
func (t *connectType) append(dst, raw []byte, field string) ([]byte, error) {
	if !t.converts() || raw[0] == 'n' {
		return append(dst, raw...), nil
	}
	out, err := t.convert(dst, raw, field)
	var d *DecodeError
	if err != nil && !errors.As(err, &d) {
		err = &DecodeError{Class: ClassValue, Field: field, Why: err.Error()}
	}
	return out, err
}

var errConnect = errors.New("not what its schema says")

func (t *connectType) convert(dst, raw []byte, field string) ([]byte, error) {
	v := Value{Kind: kindOf(raw[0]), flags: hasEscape, Raw: raw}
	switch t.kind {
	case connectStruct, connectMap, connectVariable, connectPoint:
		if v.Kind != Object {
			return dst, errConnect
		}
		switch t.kind {
		case connectVariable:
			return appendVariable(dst, raw)
		case connectPoint:
			return appendPoint(dst, raw)
		}
		dst = append(dst, '{')
		n := 0
		err := members(raw, func(name, value []byte) (err error) {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			dst = append(append(dst, name...), ':')
			of := t.items
			if t.kind == connectStruct {
				of = t.fields[string(unquoted(name))]
			}
			dst, err = of.append(dst, value, field)
			return err
		})
		return append(dst, '}'), err
	case connectArray:
		if v.Kind != Array {
			return dst, errConnect
		}
		dst = append(dst, '[')
		n := 0
		for e := range v.Elements() {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = t.items.append(dst, e.Raw, field); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	case connectDecimal:
		if v.Kind != String {
			// The converter may be told to write decimals as numbers.
			if v.Kind == Number {
				return append(dst, raw...), nil
			}
			return dst, errConnect
		}
		return appendDecimal(dst, v.Text(nil), t.scale)
	case connectBits:
		if v.Kind != String {
			return dst, errConnect
		}
		return appendBits(dst, v.Text(nil), t.scale)
	case connectJSON:
		if v.Kind != String {
			return append(dst, raw...), nil
		}
		if text := v.Text(nil); json.Valid(text) {
			return append(dst, text...), nil
		}
		return dst, errors.New("no JSON text")
	case connectWall:
		if v.Kind != String {
			return dst, errConnect
		}
		return appendWall(dst, raw), nil
	}
	if v.Kind != Number {
		return dst, errConnect
	}
	n, err := v.Int64()
	if err != nil {
		return dst, err
	}
	return t.time(dst, n)
}

// appendVariable writes {"scale": …, "value": …}.
func appendVariable(dst, raw []byte) ([]byte, error) {
	var v struct {
		Scale *int
		Value *string
	}
	if err := json.Unmarshal(raw, &v); err != nil || v.Scale == nil || v.Value == nil || *v.Scale > maxScale || *v.Scale < -maxScale {
		return dst, errConnect
	}
	return appendDecimal(dst, []byte(*v.Value), *v.Scale)
}

// appendDecimal writes the number of big-endian two's complement bytes, divided
// by ten to the scale.
func appendDecimal(dst, text []byte, scale int) ([]byte, error) {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil || len(b) == 0 {
		return dst, errConnect
	}
	var n big.Int
	n.SetBytes(b)
	if b[0] >= 0x80 {
		var all big.Int
		n.Sub(&n, all.Lsh(big.NewInt(1), uint(8*len(b))))
	}
	digits := n.Append(nil, 10)
	if digits[0] == '-' {
		dst, digits = append(dst, '-'), digits[1:]
	}
	if scale <= 0 {
		dst = append(dst, digits...)
		for ; scale < 0 && n.Sign() != 0; scale++ {
			dst = append(dst, '0')
		}
		return dst, nil
	}
	whole := len(digits) - scale
	if whole <= 0 {
		dst = append(dst, '0', '.')
		for ; whole < 0; whole++ {
			dst = append(dst, '0')
		}
		return append(dst, digits...), nil
	}
	dst = append(append(dst, digits[:whole]...), '.')
	return append(dst, digits[whole:]...), nil
}

// appendPoint writes the coordinates of {"x": …, "y": …, …} as PostgreSQL does.
func appendPoint(dst, raw []byte) ([]byte, error) {
	var v struct{ X, Y json.Number }
	if err := json.Unmarshal(raw, &v); err != nil || v.X == "" || v.Y == "" {
		return dst, errConnect
	}
	return fmt.Appendf(dst, `"(%s,%s)"`, v.X, v.Y), nil
}

// appendWall drops the Z after a day or time of no zone.
func appendWall(dst, raw []byte) []byte {
	switch string(raw) {
	case `"+294247-01-10T04:00:25.2Z"`:
		return append(dst, `"infinity"`...)
	case `"-290308-12-21T19:59:27.6Z"`:
		return append(dst, `"-infinity"`...)
	}
	if n := len(raw) - 2; n > 0 && raw[n] == 'Z' {
		return append(append(dst, raw[:n]...), '"')
	}
	return append(dst, raw...)
}

// appendBits writes zeros and ones, the highest first, of little-endian bytes,
// of which the highest are left out if they are zero.
func appendBits(dst, text []byte, length int) ([]byte, error) {
	b, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		return dst, errConnect
	}
	if length > maxScale {
		length = 8 * len(b) // bit varying without a limit: as many as there are
	}
	dst = append(dst, '"')
	for i := length - 1; i >= 0; i-- {
		bit := byte(0)
		if i < 8*len(b) {
			bit = b[i/8] >> (i % 8) & 1
		}
		dst = append(dst, '0'+bit)
	}
	return append(dst, '"'), nil
}

// What PostgreSQL's driver, and so Debezium, gives for infinity: in microseconds
// and in milliseconds.
const (
	connectInfinity          = 9223372036825200000
	connectNegInfinity       = -9223372036832400000
	connectInfinityMillis    = connectInfinity / 1000
	connectNegInfinityMillis = connectNegInfinity / 1000
)

func (t *connectType) time(dst []byte, n int64) ([]byte, error) {
	unit := int64(1)
	for range t.scale {
		unit *= 10
	}
	switch t.kind {
	case connectDays:
		if n > 1<<31 || n < -1<<31 {
			return dst, ErrRange
		}
		return time.Unix(86400*n, 0).UTC().AppendFormat(dst, `"2006-01-02"`), nil
	case connectStamp:
		switch {
		case n == connectInfinity, n == connectInfinityMillis && t.scale == 3:
			return append(dst, `"infinity"`...), nil
		case n == connectNegInfinity, n == connectNegInfinityMillis && t.scale == 3:
			return append(dst, `"-infinity"`...), nil
		}
		s, part := n/unit, n%unit
		if part < 0 {
			s, part = s-1, part+unit
		}
		at := time.Unix(s, part*(int64(time.Second)/unit)).UTC()
		return at.AppendFormat(dst, `"2006-01-02T15:04:05.999999999"`), nil
	case connectClock:
		dst = append(dst, '"')
		if n < 0 {
			dst, n = append(dst, '-'), -n
		}
		s := n / unit
		dst = fmt.Appendf(dst, "%02d:%02d:%02d", s/3600, s/60%60, s%60)
		dst = t.fraction(dst, n%unit)
		return append(dst, '"'), nil
	}
	if unit > 1_000_000 && n%1000 != 0 {
		return dst, errors.New("nanoseconds, finer than the database has")
	}
	dst = append(dst, '"')
	if n < 0 {
		dst, n = append(dst, '-'), -n
	}
	dst = t.fraction(strconv.AppendInt(dst, n/unit, 10), n%unit)
	return append(dst, ` seconds"`...), nil
}

func (t *connectType) fraction(dst []byte, part int64) []byte {
	if part == 0 {
		return dst
	}
	return fmt.Appendf(dst, ".%0*d", t.scale, part)
}

package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"

	"github.com/semelhq/semel"
)

// computed is an expression of CEL that is more than a selection. It doesn't
// change.
type computed struct {
	program cel.Program
	out     *cel.Type
	uses    map[Root]bool
}

// language is what expressions may name. Numbers of JSON are doubles there.
var language = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("value", cel.DynType),
		cel.Variable("key", cel.DynType),
		cel.Variable("envelope", cel.DynType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("timestamp", cel.TimestampType),
		cel.Variable("topic", cel.StringType),
		cel.Variable("partition", cel.IntType),
		cel.Variable("offset", cel.IntType),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(),
	)
})

// ParseExpr reads an expression: a plain selection as [ParsePath] does, anything
// else is CEL. Its error is an *ExprError.
func ParseExpr(expr string) (Path, error) {
	p, err := ParsePath(expr)
	if err == nil {
		return p, nil
	}
	return compute(expr, err)
}

// compute reads an expression that is no selection. Of two errors the selection's
// says more, if the expression begins like one.
func compute(expr string, noPath error) (Path, error) {
	c, err := compile(expr)
	var e *ExprError
	if err != nil && errors.As(noPath, &e) && !e.Computed {
		return Path{}, noPath
	}
	return Path{Root: rootComputed, Names: []string{expr}, computed: c}, err
}

// ParseFilter reads an expression whose answer is yes or no. Its error is an
// *ExprError.
func ParseFilter(expr string) (Path, error) {
	_, noPath := ParsePath(expr)
	p, err := compute(expr, noPath)
	if err == nil && !p.computed.out.IsExactType(cel.BoolType) && !p.computed.out.IsExactType(cel.DynType) {
		err = &ExprError{Expr: expr, Column: 1, Why: "a filter answers true or false, and this is " + p.computed.out.String()}
	}
	return p, err
}

func compile(expr string) (*computed, error) {
	env, err := language()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expr)
	if issues.Err() != nil {
		e := &ExprError{Expr: expr, Column: 1, Why: issues.Err().Error()}
		if all := issues.Errors(); len(all) > 0 {
			e.Column, e.Why = all[0].Location.Column()+1, all[0].Message
		}
		return nil, e
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, &ExprError{Expr: expr, Column: 1, Why: err.Error()}
	}
	c := &computed{program: program, out: ast.OutputType(), uses: map[Root]bool{}}
	celast.PostOrderVisit(ast.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.IdentKind {
			return
		}
		for r, name := range roots {
			if r > 0 && name == e.AsIdent() {
				c.uses[Root(r)] = true
			}
		}
	}))
	return c, nil
}

// IsComputed says that the expression computes, and is no plain selection.
func (p Path) IsComputed() bool { return p.Root == rootComputed }

// Uses says that the expression looks at that part of the message.
func (p Path) Uses(r Root) bool {
	if p.computed != nil {
		return p.computed.uses[r]
	}
	return p.Root == r
}

// MayBeNumber says whether what is computed may be a number, and so is one that
// went through a double.
func (p Path) MayBeNumber() bool {
	return p.computed != nil && (p.computed.out.IsExactType(cel.DynType) || p.computed.out.IsExactType(cel.DoubleType) ||
		p.computed.out.IsExactType(cel.IntType) || p.computed.out.IsExactType(cel.UintType) || p.computed.out.IsExactType(cel.AnyType))
}

// computation is a slot that takes what is computed.
type computation struct {
	slot int
	expr Path
}

// look sees to it that what the expression looks at is read. It takes slots behind
// those of columns and ID.
func (m *Mapping) look(p Path) error {
	hidden := func(at *int, t **tree, root Root) {
		if *at >= 0 {
			return
		}
		if *t == nil {
			*t = newTree(root.String())
		}
		if *at = (*t).add(Path{Root: root}, m.slots); *at == m.slots {
			m.slots++
		}
	}
	if p.Uses(RootValue) {
		hidden(&m.whole.value, &m.value, RootValue)
	}
	if p.Uses(RootKey) && m.keyFormat == KeyJSON {
		hidden(&m.whole.key, &m.key, RootKey)
	}
	if p.Uses(RootEnvelope) {
		if len(m.openers) == 0 {
			return fmt.Errorf("%s: messages are in no envelope", p)
		}
		hidden(&m.whole.envelope, &m.envelope, RootEnvelope)
	}
	return nil
}

// wholes are slots of all of the value, key and envelope, for expressions; -1 if
// none looks there.
type wholes struct{ value, key, envelope int }

// variables are a message as expressions see it.
type variables struct {
	m   *Mapping
	msg *semel.Message
	row *Row
}

// Parent and ResolveName make it what CEL evaluates against.
func (v *variables) Parent() cel.Activation { return nil }

func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case "value":
		return v.json(v.m.whole.value), true
	case "key":
		if v.m.keyFormat == KeyJSON {
			return v.json(v.m.whole.key), true
		}
		k, err := v.m.keyValue(v.msg)
		switch {
		case err != nil:
			return types.NewErr("key is not valid UTF-8"), true
		case k.Kind == Null:
			return types.NullValue, true
		case k.Kind == Bytes:
			return types.Bytes(k.Raw), true
		}
		return types.String(k.Raw), true
	case "envelope":
		return v.json(v.m.whole.envelope), true
	case "headers":
		return &lazyMap{of: headers{v.msg}}, true
	case "timestamp":
		return types.Timestamp{Time: v.msg.Timestamp.UTC()}, true
	case "topic":
		return types.String(v.msg.Topic), true
	case "partition":
		return types.Int(v.msg.Partition), true
	case "offset":
		return types.Int(v.msg.Offset), true
	}
	return nil, false
}

func (v *variables) json(slot int) ref.Val {
	if slot < 0 || v.row.all[slot].IsNull() {
		return types.NullValue
	}
	return fromJSON(v.row.all[slot].Raw)
}

// eval is the answer of an expression. What it can't answer is the message's
// fault.
func (p Path) eval(v *variables) (ref.Val, error) {
	out, _, err := p.computed.program.Eval(v)
	if err != nil {
		return nil, &DecodeError{Class: ClassValue, Field: p.String(), Why: err.Error()}
	}
	return out, nil
}

// passes asks the filter. A message without a value passes one that asks about the
// value: it deletes, and what isn't there can be deleted.
func (m *Mapping) passes(v *variables) (bool, error) {
	if m.filter.IsZero() || v.row.Tombstone && m.filter.Uses(RootValue) {
		return true, nil
	}
	out, err := m.filter.eval(v)
	if err != nil {
		return false, err
	}
	yes, ok := out.(types.Bool)
	if !ok {
		return false, &DecodeError{Class: ClassValue, Field: m.filter.String(), Why: "neither true nor false but " + out.Type().TypeName()}
	}
	return bool(yes), nil
}

// calculate fills the slots of what is computed.
func (m *Mapping) calculate(v *variables) error {
	for _, c := range m.computed {
		if v.row.Tombstone && c.expr.Uses(RootValue) {
			continue // it has no fields to compute with
		}
		out, err := c.expr.eval(v)
		if err != nil {
			return err
		}
		value, err := fromCEL(out)
		if err != nil {
			return &DecodeError{Class: ClassValue, Field: c.expr.String(), Why: err.Error()}
		}
		if c.expr.Uses(RootTimestamp) || c.expr.Uses(RootPartition) || c.expr.Uses(RootOffset) {
			value.flags |= isPlace
		}
		v.row.all[c.slot] = value
	}
	return nil
}

// fromCEL is a value of CEL as one of a message.
func fromCEL(v ref.Val) (Value, error) {
	switch v := v.(type) {
	case types.Null:
		return Value{Kind: Null}, nil
	case types.Bool:
		return Value{Kind: Bool, Raw: strconv.AppendBool(nil, bool(v))}, nil
	case types.Int:
		return Value{Kind: Number, Raw: strconv.AppendInt(nil, int64(v), 10)}, nil
	case types.Uint:
		return Value{Kind: Number, Raw: strconv.AppendUint(nil, uint64(v), 10)}, nil
	case types.Double:
		switch f := float64(v); {
		case math.IsNaN(f):
			return TextValue([]byte("NaN")), nil
		case math.IsInf(f, 0):
			return TextValue(strconv.AppendFloat(nil, f, 'g', -1, 64)), nil
		}
		raw, err := json.Marshal(float64(v))
		return Value{Kind: Number, Raw: raw}, err
	case types.String:
		if !utf8.ValidString(string(v)) {
			return Value{}, errors.New("not valid UTF-8")
		}
		return TextValue([]byte(v)), nil
	case types.Bytes:
		return BytesValue([]byte(v)), nil
	case types.Timestamp:
		return TextValue(v.Time.UTC().AppendFormat(nil, time.RFC3339Nano)), nil
	case types.Duration:
		return TextValue([]byte(strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + " seconds")), nil
	}
	raw, err := appendCEL(nil, v)
	if err != nil {
		return Value{}, err
	}
	s := scanner{data: raw}
	s.value(0, nil)
	return Value{Kind: kindOf(raw[0]), flags: s.flags, Raw: raw}, nil
}

// appendCEL writes a document; what came from the message as it was sent.
func appendCEL(dst []byte, v ref.Val) ([]byte, error) {
	switch v := v.(type) {
	case *lazyMap:
		if o, ok := v.of.(object); ok {
			return append(dst, o.raw...), nil
		}
	case *sentList:
		return append(dst, v.raw...), nil
	case types.Bytes:
		return append(base64.StdEncoding.AppendEncode(append(dst, '"'), v), '"'), nil
	}
	switch c := v.(type) {
	case traits.Mapper:
		var names []string
		for it := c.Iterator(); it.HasNext() == types.True; {
			name, ok := it.Next().(types.String)
			if !ok {
				return dst, errors.New("a map whose keys are no texts is no document")
			}
			names = append(names, string(name))
		}
		sort.Strings(names)
		dst = append(dst, '{')
		for i, name := range names {
			if i > 0 {
				dst = append(dst, ',')
			}
			text, _ := json.Marshal(name)
			dst = append(append(dst, text...), ':')
			var err error
			if dst, err = appendCEL(dst, c.Get(types.String(name))); err != nil {
				return dst, err
			}
		}
		return append(dst, '}'), nil
	case traits.Lister:
		dst = append(dst, '[')
		n, _ := c.Size().(types.Int)
		for i := range n {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendCEL(dst, c.Get(i)); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	case types.Null:
		return append(dst, "null"...), nil
	case types.Bool, types.Int, types.Uint, types.Double, types.String, types.Timestamp:
		text, err := json.Marshal(v.Value())
		return append(dst, text...), err
	}
	return dst, fmt.Errorf("%s is no value of a column", v.Type().TypeName())
}

// fromJSON is a checked JSON value as CEL sees it. Objects are read when somebody
// asks for a field.
func fromJSON(raw []byte) ref.Val {
	v := Value{Kind: kindOf(raw[0]), flags: hasEscape, Raw: raw}
	switch v.Kind {
	case Null:
		return types.NullValue
	case Bool:
		return types.Bool(v.Bool())
	case Number:
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil {
			return types.NewErr("%s is beyond what a double holds", raw)
		}
		// A fraction is what doubles make of it; a whole number is told apart from
		// its neighbours, or refused.
		if n, err := v.Int64(); math.Abs(f) >= 1<<53 && (err != nil || int64(f) != n || f >= 1<<63) {
			return types.NewErr("%s is more exact than a double", raw)
		}
		return types.Double(f)
	case String:
		return types.String(v.Text(nil))
	case Object:
		return &lazyMap{of: object{raw}}
	}
	var all []ref.Val
	for e := range v.Elements() {
		all = append(all, fromJSON(e.Raw))
	}
	return &sentList{types.NewRefValList(types.DefaultTypeAdapter, all), raw}
}

// sentList is an array as it was sent.
type sentList struct {
	traits.Lister
	raw []byte
}

// source is what a lazy map looks into.
type source interface {
	find(name string) (v ref.Val, ok bool)
	all() map[ref.Val]ref.Val
}

// lazyMap is a map whose fields are made when they are asked for.
type lazyMap struct {
	of   source
	full traits.Mapper
}

var _ traits.Mapper = (*lazyMap)(nil)

func (m *lazyMap) made() traits.Mapper {
	if m.full == nil {
		m.full = types.NewRefValMap(types.DefaultTypeAdapter, m.of.all())
	}
	return m.full
}

func (m *lazyMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	return m.of.find(string(name))
}

func (m *lazyMap) Get(key ref.Val) ref.Val {
	v, ok := m.Find(key)
	if !ok && v == nil {
		return types.NewErr("no such key: %v", key.Value())
	}
	return v
}

func (m *lazyMap) Contains(key ref.Val) ref.Val {
	v, ok := m.Find(key)
	if v != nil && types.IsError(v) {
		return v
	}
	return types.Bool(ok)
}

func (m *lazyMap) ConvertToNative(t reflect.Type) (any, error) { return m.made().ConvertToNative(t) }

func (m *lazyMap) ConvertToType(t ref.Type) ref.Val {
	if t == types.MapType {
		return m
	}
	return m.made().ConvertToType(t)
}

func (m *lazyMap) Equal(other ref.Val) ref.Val {
	if o, ok := other.(*lazyMap); ok {
		other = o.made()
	}
	return m.made().Equal(other)
}
func (m *lazyMap) Type() ref.Type            { return types.MapType }
func (m *lazyMap) Value() any                { return m.made().Value() }
func (m *lazyMap) Size() ref.Val             { return m.made().Size() }
func (m *lazyMap) Iterator() traits.Iterator { return m.made().Iterator() }

// object is a checked JSON object.
type object struct{ raw []byte }

func (o object) find(name string) (v ref.Val, ok bool) {
	twice := false
	err := members(o.raw, func(text, value []byte) error {
		if string(unquoted(text)) == name {
			twice = ok
			v, ok = fromJSON(value), true
		}
		return nil
	})
	switch {
	case err != nil:
		return types.WrapErr(err), false
	case twice:
		return types.NewErr("the name %s twice in one object", quote([]byte(name))), false
	}
	return v, ok
}

func (o object) all() map[ref.Val]ref.Val {
	all := map[ref.Val]ref.Val{}
	_ = members(o.raw, func(name, value []byte) error {
		all[types.String(unquoted(name))] = fromJSON(value)
		return nil
	})
	return all
}

// headers are a message's, the last of each name.
type headers struct{ msg *semel.Message }

func (h headers) find(name string) (ref.Val, bool) {
	v, ok := h.msg.Header(name)
	switch {
	case !ok:
		return nil, false
	case v == nil:
		return types.NullValue, true
	case !utf8.Valid(v):
		return types.NewErr("header %s is not valid UTF-8", name), false
	}
	return types.String(bytes.Clone(v)), true
}

func (h headers) all() map[ref.Val]ref.Val {
	all := map[ref.Val]ref.Val{}
	for _, header := range h.msg.Headers {
		if v, _ := h.find(header.Name); v != nil {
			all[types.String(header.Name)] = v
		}
	}
	return all
}

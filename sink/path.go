package sink

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Root is the part of a message in which a path begins.
type Root uint8

const (
	RootValue Root = iota + 1
	RootKey
	RootHeaders
	RootTimestamp
	RootTopic
	RootPartition
	RootOffset
	RootEnvelope

	rootComputed // Names has the expression
)

var roots = []string{"", "value", "key", "headers", "timestamp", "topic", "partition", "offset", "envelope"}

// String is the name in expressions.
func (r Root) String() string { return roots[r] }

// Path is an expression. Nearly always it is a plain selection: value.order.id,
// value["two words"], headers.name, key, timestamp; that is exact, since nothing
// is computed. [ParseExpr] makes others.
type Path struct {
	Root Root
	// Names lead from the root to the field; none means all of it.
	Names []string

	computed *computed // see [ParseExpr]
}

// String writes the path as an expression that parses to the same path.
func (p Path) String() string {
	switch p.Root {
	case 0:
		return ""
	case rootComputed:
		return p.Names[0]
	}
	var b strings.Builder
	b.WriteString(p.Root.String())
	for _, n := range p.Names {
		if isName(n) {
			b.WriteByte('.')
			b.WriteString(n)
		} else {
			b.WriteString(`["`)
			for _, r := range n {
				switch {
				case r == '"' || r == '\\':
					b.WriteByte('\\')
					b.WriteRune(r)
				case r < ' ' || r == 0x7F:
					fmt.Fprintf(&b, `\u%04x`, r)
				default:
					b.WriteRune(r)
				}
			}
			b.WriteString(`"]`)
		}
	}
	return b.String()
}

// IsZero says whether there is no path.
func (p Path) IsZero() bool { return p.Root == 0 }

// IsPlace says that it selects where and when the message stands in its log, not
// what the message says: a repeat by its producer stands elsewhere.
func (p Path) IsPlace() bool {
	return p.Root == RootTimestamp || p.Root == RootPartition || p.Root == RootOffset
}

// IsPosition says that it is the number that an envelope gives to a place in its
// source's log.
func (p Path) IsPosition() bool {
	return p.Root == RootEnvelope && len(p.Names) == 1 && p.Names[0] == "position"
}

// IsFew says that it takes few values, however many messages there are: the topic, the
// kind of a change, and where a source keeps the table.
func (p Path) IsFew() bool {
	switch {
	case p.Root == RootTopic, p.Root == RootPartition:
		return true
	case p.Root != RootEnvelope:
		return false
	case len(p.Names) == 1:
		return p.Names[0] == "op"
	case len(p.Names) == 2 && p.Names[0] == "source":
		return slices.Contains([]string{"connector", "version", "name", "db", "schema", "table", "collection", "snapshot"}, p.Names[1])
	}
	return false
}

// Equal says whether both select the same.
func (p Path) Equal(q Path) bool { return p.String() == q.String() }

// ExprError says why an expression is refused, and where.
type ExprError struct {
	Expr   string
	Column int // in characters, from 1
	Why    string
	// Computed: it may well be a right expression, but is more than a selection.
	Computed bool
}

func (e *ExprError) Error() string {
	return clean(fmt.Sprintf("expression %q, column %d: %s", e.Expr, e.Column, e.Why))
}

// ParsePath reads a plain selection. Its error is an *ExprError.
func ParsePath(expr string) (Path, error) {
	p := pathParser{expr: expr}
	return p.parse()
}

type pathParser struct {
	expr string
	at   int
}

func (p *pathParser) fail(at int, why string) error {
	return &ExprError{Expr: p.expr, Column: utf8.RuneCountInString(p.expr[:at]) + 1, Why: why}
}

func (p *pathParser) computed(at int) error {
	return &ExprError{
		Expr: p.expr, Column: utf8.RuneCountInString(p.expr[:at]) + 1, Computed: true,
		Why: "only a selection like value.order.id is meant here, nothing computed",
	}
}

func (p *pathParser) space() {
	for p.at < len(p.expr) && isSpace(p.expr[p.at]) {
		p.at++
	}
}

func (p *pathParser) peek() byte {
	if p.at < len(p.expr) {
		return p.expr[p.at]
	}
	return 0
}

func (p *pathParser) name() string {
	from := p.at
	for p.at < len(p.expr) && isNameByte(p.expr[p.at], p.at > from) {
		p.at++
	}
	return p.expr[from:p.at]
}

func (p *pathParser) parse() (Path, error) {
	if !utf8.ValidString(p.expr) {
		return Path{}, p.fail(0, "not valid UTF-8")
	}
	p.space()
	from := p.at
	if from == len(p.expr) {
		return Path{}, p.fail(from, "empty")
	}
	word := p.name()
	var path Path
	for r, name := range roots {
		if r > 0 && name == word {
			path.Root = Root(r)
		}
	}
	if path.Root == 0 {
		after := p.at
		p.space()
		switch {
		case word == "" && p.expr[from] >= utf8.RuneSelf,
			word == "" && strings.IndexByte(".)]},;:=", p.expr[from]) >= 0:
			return Path{}, p.fail(from, "no expression begins like this: "+rootsHint)
		case word == "", word == "true", word == "false", word == "null", p.peek() == '(':
			return Path{}, p.computed(from)
		}
		p.at = after
		return Path{}, p.fail(from, "there is no "+word+": "+rootsHint)
	}
	for {
		p.space()
		switch p.peek() {
		case '.':
			p.at++
			p.space()
			at := p.at
			name := p.name()
			if name == "" {
				return Path{}, p.fail(at, `a name should follow the dot; other names are written ["…"]`)
			}
			if end := p.at; p.space2() == '(' {
				return Path{}, p.computed(end)
			}
			path.Names = append(path.Names, name)
		case '[':
			p.at++
			p.space()
			if c := p.peek(); c != '"' && c != '\'' {
				return Path{}, p.computed(p.at)
			}
			name, err := p.quoted()
			if err != nil {
				return Path{}, err
			}
			if p.space2() != ']' {
				return Path{}, p.fail(p.at, "a ] should follow the name")
			}
			p.at++
			path.Names = append(path.Names, name)
		default:
			if p.at < len(p.expr) {
				return Path{}, p.computed(p.at)
			}
			return path, p.check(path, from+len(word))
		}
	}
}

const rootsHint = "one of value, key, headers, timestamp, topic, partition, offset, envelope"

func (p *pathParser) space2() byte { p.space(); return p.peek() }

func (p *pathParser) check(path Path, at int) error {
	switch n := len(path.Names); {
	case path.Root == RootHeaders && n == 0:
		return p.fail(at, `which header? headers.name or headers["name"]`)
	case path.Root == RootHeaders && n > 1:
		return p.fail(at, "a header is text, it has no fields")
	case path.Root == RootEnvelope && n == 0:
		return p.fail(at, "what of the envelope? envelope.op, envelope.source.lsn")
	case path.Root > RootHeaders && path.Root != RootEnvelope && n > 0:
		return p.fail(at, path.Root.String()+" has no fields")
	}
	return nil
}

// quoted reads a name in quotes of either kind.
func (p *pathParser) quoted() (string, error) {
	from := p.at
	end := p.expr[p.at]
	p.at++
	var b strings.Builder
	for p.at < len(p.expr) {
		c := p.expr[p.at]
		p.at++
		switch c {
		case end:
			return b.String(), nil
		case '\\':
			if p.at == len(p.expr) {
				return "", p.fail(from, "the quote is not closed")
			}
			e := p.expr[p.at]
			p.at++
			switch e {
			case '\\', '"', '\'', '/':
				b.WriteByte(e)
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case 't':
				b.WriteByte('\t')
			case 'u':
				r, ok := hex4([]byte(p.expr), p.at)
				if !ok || r >= 0xD800 && r <= 0xDFFF {
					return "", p.fail(p.at-2, "four hexadecimal digits of a character should follow \\u")
				}
				b.WriteRune(r)
				p.at += 4
			default:
				return "", p.fail(p.at-2, "no such escape")
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", p.fail(from, "the quote is not closed")
}

func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i], i > 0) {
			return false
		}
	}
	return s != ""
}

func isNameByte(c byte, later bool) bool {
	return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || later && isDigit(c)
}

package lab

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// PostgresProxy stands in front of a PostgreSQL. It speaks no TLS: clients that would like it are told that there is
// none.
type PostgresProxy struct {
	*proxy
	url *url.URL
}

// NewPostgresProxy starts one in front of the server that a URL names.
func NewPostgresProxy(database string) (*PostgresProxy, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, err
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "5432")
	}
	p, err := startProxy(host, func() dialect {
		return &pgDialect{statements: map[string]string{}, portals: map[string]string{}}
	})
	if err != nil {
		return nil, fmt.Errorf("proxy for PostgreSQL: %w", err)
	}
	return &PostgresProxy{p, u}, nil
}

// URL leads to the same database through the proxy.
func (p *PostgresProxy) URL() string {
	u := *p.url
	u.Host = p.Addr()
	return u.String()
}

// verb is the first word of a statement.
func verb(sql string) string {
	f := strings.FieldsFunc(sql, func(r rune) bool { return r == ' ' || r == '\n' || r == '\t' || r == ';' })
	if len(f) == 0 {
		return ""
	}
	return strings.ToLower(f[0])
}

// pgDialect knows which statement a name stands for. Its first three fields belong to the side of requests.
type pgDialect struct {
	statements, portals map[string]string
	asked               int64 // ReadyForQuery messages that are due, the one after the start included
	answered            int64
}

const (
	sslRequest    = 80877103
	gssRequest    = 80877104
	cancelRequest = 80877102
	largest       = 1 << 30
)

var errFrame = errors.New("not a message of the protocol")

func (d *pgDialect) open(l *link) (bool, error) {
	for {
		raw, err := sized(l.r[0], nil)
		if err != nil {
			return false, err
		}
		if len(raw) < 8 {
			return false, errFrame
		}
		switch code := binary.BigEndian.Uint32(raw[4:]); code {
		case sslRequest, gssRequest:
			if _, err := l.client.Write([]byte{'N'}); err != nil {
				return false, err
			}
		default:
			d.asked = 1
			_, err := l.server.Write(raw)
			return code != cancelRequest, err
		}
	}
}

// sized reads a length that counts itself, and as much behind it; head stands before.
func sized(r io.Reader, head []byte) ([]byte, error) {
	raw := append(head, 0, 0, 0, 0)
	n := len(head)
	if _, err := io.ReadFull(r, raw[n:]); err != nil {
		return nil, err
	}
	size := int(binary.BigEndian.Uint32(raw[n:]))
	if size < 4 || size > largest {
		return nil, errFrame
	}
	raw = append(raw, make([]byte, size-4)...)
	_, err := io.ReadFull(r, raw[n+4:])
	return raw, err
}

func message(r *bufio.Reader) (kind byte, raw []byte, err error) {
	if kind, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	raw, err = sized(r, []byte{kind})
	return kind, raw, err
}

// requests that matter here by what they say; the others have a name alone.
func (d *pgDialect) request(r *bufio.Reader) (f Frame, raw []byte, err error) {
	kind, raw, err := message(r)
	if err != nil {
		return f, nil, err
	}
	body := raw[5:]
	f.Kind = requestNames[kind]
	f.ends = d.asked + 1
	switch kind {
	case 'Q':
		var m pgproto3.Query
		err = m.Decode(body)
		f.SQL = m.String
		d.asked++
	case 'S', 'F':
		d.asked++
	case 'P':
		var m pgproto3.Parse
		err = m.Decode(body)
		f.SQL = m.Query
		d.statements[m.Name] = m.Query
	case 'B':
		var m pgproto3.Bind
		err = m.Decode(body)
		f.SQL = d.statements[m.PreparedStatement]
		d.portals[m.DestinationPortal] = f.SQL
	case 'D':
		var m pgproto3.Describe
		err = m.Decode(body)
		f.SQL = d.portals[m.Name]
		if m.ObjectType == 'S' {
			f.SQL = d.statements[m.Name]
		}
	case 'E':
		var m pgproto3.Execute
		err = m.Decode(body)
		f.SQL = d.portals[m.Portal]
	}
	return f, raw, err
}

func (d *pgDialect) answer(r *bufio.Reader) (f Frame, raw []byte, err error) {
	kind, raw, err := message(r)
	if err != nil {
		return f, nil, err
	}
	f.Kind = answerNames[kind]
	if kind == 'Z' {
		d.answered++
	}
	f.ends = d.answered
	if kind != 'Z' {
		f.ends++
	}
	return f, raw, nil
}

func (d *pgDialect) belongs(request, answer Frame) (part, last bool) {
	return answer.ends == request.ends, answer.ends == request.ends && answer.Kind == "ReadyForQuery"
}

// Names of messages, as pgproto3 has them.
var requestNames = names(map[byte]any{
	'B': pgproto3.Bind{}, 'C': pgproto3.Close{}, 'D': pgproto3.Describe{}, 'E': pgproto3.Execute{}, 'F': pgproto3.FunctionCall{},
	'H': pgproto3.Flush{}, 'P': pgproto3.Parse{}, 'Q': pgproto3.Query{}, 'S': pgproto3.Sync{}, 'X': pgproto3.Terminate{},
	'd': pgproto3.CopyData{}, 'c': pgproto3.CopyDone{}, 'f': pgproto3.CopyFail{}, 'p': pgproto3.PasswordMessage{},
})

var answerNames = names(map[byte]any{
	'1': pgproto3.ParseComplete{}, '2': pgproto3.BindComplete{}, '3': pgproto3.CloseComplete{}, 'A': pgproto3.NotificationResponse{},
	'C': pgproto3.CommandComplete{}, 'd': pgproto3.CopyData{}, 'c': pgproto3.CopyDone{}, 'D': pgproto3.DataRow{},
	'E': pgproto3.ErrorResponse{}, 'G': pgproto3.CopyInResponse{}, 'H': pgproto3.CopyOutResponse{}, 'I': pgproto3.EmptyQueryResponse{},
	'K': pgproto3.BackendKeyData{}, 'n': pgproto3.NoData{}, 'N': pgproto3.NoticeResponse{}, 'R': pgproto3.AuthenticationOk{},
	's': pgproto3.PortalSuspended{}, 'S': pgproto3.ParameterStatus{}, 't': pgproto3.ParameterDescription{},
	'T': pgproto3.RowDescription{}, 'V': pgproto3.FunctionCallResponse{}, 'W': pgproto3.CopyBothResponse{}, 'Z': pgproto3.ReadyForQuery{},
})

func names(of map[byte]any) map[byte]string {
	out := make(map[byte]string, len(of))
	for b, m := range of {
		out[b] = reflect.TypeOf(m).Name()
	}
	return out
}

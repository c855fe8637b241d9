package postgres

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// copyBegin is the head of binary COPY: signature, flags, no extension.
const copyBegin = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// A tuple is a row as binary COPY wants it: the number of fields in two bytes,
// then each field with its length in four, -1 for null. In text form the fields
// are what input functions read, and are escaped on their way out.

// copyNull is the length of null.
const copyNull = -1

// copyFields visits the fields of a tuple; null is nil.
func copyFields(tuple []byte, f func(field []byte)) {
	for b := tuple[2:]; len(b) > 0; {
		n := int32(binary.BigEndian.Uint32(b))
		b = b[4:]
		if n == copyNull {
			f(nil)
			continue
		}
		f(b[:n:n])
		b = b[n:]
	}
}

// copyReader is the stream that COPY reads: pgx reads it on a goroutine of its
// own, and may go on for a moment after an error. stop makes sure that it looks
// at no row any more, for rows are written anew.
type copyReader struct {
	mu   sync.Mutex // guards all
	rows []*tableRow
	text bool
	line []byte // a row in text form
	rest []byte // of what is being read
	end  bool   // the trailer is in rest or out
}

func newCopyReader(rows []*tableRow, text bool) *copyReader {
	r := &copyReader{rows: rows, text: text}
	if !text {
		r.rest = []byte(copyBegin)
	}
	return r
}

func (r *copyReader) Read(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		k := copy(p[n:], r.rest)
		n += k
		if r.rest = r.rest[k:]; len(r.rest) > 0 {
			return n, nil // p is full
		}
		switch {
		case len(r.rows) > 0:
			r.rest = r.rows[0].tuple
			if r.text {
				r.line = copyLine(r.line[:0], r.rest)
				r.rest = r.line
			}
			r.rows = r.rows[1:]
		case !r.end && !r.text:
			r.rest, r.end = []byte{255, 255}, true
		case n > 0:
			return n, nil
		default:
			return 0, io.EOF
		}
	}
}

func (r *copyReader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows, r.rest, r.line, r.end = nil, nil, nil, true
}

// copyLine writes a tuple as a line of COPY's text format.
func copyLine(dst, tuple []byte) []byte {
	first := true
	copyFields(tuple, func(field []byte) {
		if !first {
			dst = append(dst, '\t')
		}
		first = false
		if field == nil {
			dst = append(dst, `\N`...)
			return
		}
		for _, c := range field {
			switch c {
			case '\\':
				dst = append(dst, '\\', '\\')
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, c)
			}
		}
	})
	return append(dst, '\n')
}

// copyInto sends rows by COPY into a table, named as SQL with its columns, and
// answers how many the server took.
func copyInto(ctx context.Context, pg *pgconn.PgConn, into string, rows []*tableRow, text bool) (int64, error) {
	sql := "COPY " + into + " FROM STDIN"
	if !text {
		sql += " (FORMAT binary)"
	}
	r := newCopyReader(rows, text)
	defer r.stop()
	tag, err := pg.CopyFrom(ctx, r, sql)
	return tag.RowsAffected(), err
}

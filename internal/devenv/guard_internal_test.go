package devenv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// bytesConn is a connection whose other side has said all it will.
type bytesConn struct {
	net.Conn
	io.Reader
}

func (bytesConn) Close() error                 { return nil }
func (c bytesConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// frame is a request as it stands on the wire.
func frame(req kmsg.Request) []byte {
	return kmsg.NewRequestFormatter(kmsg.FormatterClientID("t")).AppendRequest(nil, req, 1)
}

// parseAsKfake does with a frame what kfake's connection reader does. It panics where kfake would.
func parseAsKfake(body []byte) {
	r := kbin.Reader{Src: body}
	key, version := r.Int16(), r.Int16()
	r.Int32()
	r.NullableString()
	req := kmsg.RequestForKey(key)
	req.SetVersion(version)
	if req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	_ = req.ReadFrom(r.Src)
}

// What passes the guard is what was sent, byte for byte, up to the first bad frame; and no frame that passes makes
// kfake's reader panic or allocate what it does not hold.
func FuzzGuard(f *testing.F) {
	f.Add(frame(kmsg.NewPtrMetadataRequest()), uint8(3))
	f.Add(append(frame(kmsg.NewPtrApiVersionsRequest()), frame(kmsg.NewPtrFetchRequest())...), uint8(255))
	f.Add([]byte{0, 0, 0, 10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff}, uint8(1)) // an unknown key
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 1, 0, 0, 0, 1, 0xff, 0xff}, uint8(8))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), uint8(16))
	f.Fuzz(func(t *testing.T, sent []byte, chunk uint8) {
		g := &guardedConn{Conn: bytesConn{Reader: bytes.NewReader(sent)}}
		var got []byte
		buf := make([]byte, max(1, int(chunk)))
		var err error
		for err == nil {
			var n int
			n, err = g.Read(buf)
			got = append(got, buf[:n]...)
		}
		if !bytes.HasPrefix(sent, got) {
			t.Fatalf("sent % x, passed on % x", sent, got)
		}
		if !errors.Is(err, errBadFrame) && !errors.Is(err, io.ErrUnexpectedEOF) && len(got) != len(sent) {
			t.Fatalf("%v after %d of %d good bytes", err, len(got), len(sent))
		}
		for len(got) >= 8 {
			size := int(int32(binary.BigEndian.Uint32(got)))
			if size < 10 || size > maxFrame {
				t.Fatalf("a length of %d passed", size)
			}
			if len(got) < 4+size {
				break
			}
			parseAsKfake(got[4 : 4+size])
			got = got[4+size:]
		}
	})
}

package devenv

import (
	"encoding/binary"
	"errors"
	"io"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxFrame is the longest request let through, that of a Kafka broker as it comes.
const maxFrame = 100 << 20

var errBadFrame = errors.New("devenv: not a Kafka request")

// A guard listens before kfake and reads the header of each request first. Kfake allocates whatever length a frame
// claims, and a key that it doesn't know takes the whole process down: any stray byte on the port would do.
// A bad frame ends its connection, as a real broker would have it.
type guard struct{ net.Listener }

func (g guard) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &guardedConn{Conn: c}, nil
}

// A guardedConn has one reader. What is read is: the header, given out from hdr[:have], then left bytes of body.
type guardedConn struct {
	net.Conn
	hdr       [8]byte // length, key, version
	pos, have int     // what of hdr was given out
	left      int     // what of the body is still to come
}

func (g *guardedConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if g.pos == g.have && g.left == 0 {
		if _, err := io.ReadFull(g.Conn, g.hdr[:]); err != nil {
			return 0, err
		}
		size := int(int32(binary.BigEndian.Uint32(g.hdr[0:])))
		key := int16(binary.BigEndian.Uint16(g.hdr[4:]))
		version := int16(binary.BigEndian.Uint16(g.hdr[6:]))
		if !plausible(size, key, version) {
			g.Conn.Close()
			return 0, errBadFrame
		}
		g.pos, g.have, g.left = 0, len(g.hdr), size-4
	}
	if g.pos < g.have {
		n := copy(p, g.hdr[g.pos:g.have])
		g.pos += n
		return n, nil
	}
	n, err := g.Conn.Read(p[:min(len(p), g.left)])
	g.left -= n
	return n, err
}

// plausible is whether kfake may see a request: size counts key, version, correlation ID and client ID's length.
// ApiVersions of any version is answered, by which clients find out what a broker speaks.
func plausible(size int, key, version int16) bool {
	const apiVersions = 18
	if size < 10 || size > maxFrame || version < 0 {
		return false
	}
	req := kmsg.RequestForKey(key)
	return req != nil && (version <= req.MaxVersion() || key == apiVersions)
}

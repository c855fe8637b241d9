package lab

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// KafkaProxy stands in front of one broker. The broker tells its clients its own address, so a client must dial the
// proxy whatever it was told, see [KafkaProxy.Dial]. It speaks no TLS.
type KafkaProxy struct{ *proxy }

// NewKafkaProxy starts one in front of a broker (host and port).
func NewKafkaProxy(broker string) (*KafkaProxy, error) {
	p, err := startProxy(broker, func() dialect { return &kafkaDialect{asked: map[int64]string{}} })
	if err != nil {
		return nil, fmt.Errorf("proxy for Kafka: %w", err)
	}
	return &KafkaProxy{p}, nil
}

// Dial leads to the proxy, wherever it was asked to go: for kgo.Dialer.
func (p *KafkaProxy) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, p.Addr())
}

// kafkaDialect knows to which request an answer belongs.
type kafkaDialect struct {
	mu    sync.Mutex
	asked map[int64]string // by correlation ID
}

func (*kafkaDialect) open(*link) (bool, error) { return true, nil }

func kafkaFrame(r *bufio.Reader, least int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(size[:]))
	if n < least || n > largest {
		return nil, errFrame
	}
	raw := make([]byte, 4+n)
	copy(raw, size[:])
	_, err := io.ReadFull(r, raw[4:])
	return raw, err
}

func (d *kafkaDialect) request(r *bufio.Reader) (f Frame, raw []byte, err error) {
	if raw, err = kafkaFrame(r, 8); err != nil {
		return f, nil, err
	}
	f.Kind = kmsg.NameForKey(int16(binary.BigEndian.Uint16(raw[4:])))
	f.id = int64(binary.BigEndian.Uint32(raw[8:]))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked[f.id] = f.Kind
	return f, raw, nil
}

func (d *kafkaDialect) answer(r *bufio.Reader) (f Frame, raw []byte, err error) {
	if raw, err = kafkaFrame(r, 4); err != nil {
		return f, nil, err
	}
	f.id = int64(binary.BigEndian.Uint32(raw[4:]))
	d.mu.Lock()
	defer d.mu.Unlock()
	f.Kind = d.asked[f.id]
	delete(d.asked, f.id)
	return f, raw, nil
}

func (*kafkaDialect) belongs(request, answer Frame) (part, last bool) {
	return answer.id == request.id, answer.id == request.id
}

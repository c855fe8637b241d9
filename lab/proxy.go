package lab

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// proxy forwards connections frame by frame.
type proxy struct {
	listener net.Listener
	target   string
	dialect  func() dialect

	mu     sync.Mutex
	conns  map[*link]bool
	count  int
	faults []*Injection
	gates  [2]chan struct{} // of requests, of answers; not nil: closed
	down   bool
	closed bool
	work   sync.WaitGroup
}

// dialect reads the frames of one connection. Each method is used by one goroutine.
type dialect interface {
	// open takes what comes before the first frame; false: the connection ends with it.
	open(l *link) (bool, error)
	request(r *bufio.Reader) (Frame, []byte, error)
	answer(r *bufio.Reader) (Frame, []byte, error)
	// belongs says whether an answer is one to the request, and whether it is the last.
	belongs(request, answer Frame) (part, last bool)
}

func startProxy(target string, d func() dialect) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target, dialect: d, conns: map[*link]bool{}}
	p.work.Go(p.accept)
	return p, nil
}

// Addr is where it listens: host and port.
func (p *proxy) Addr() string { return p.listener.Addr().String() }

// Close ends it and every connection.
func (p *proxy) Close() {
	p.mu.Lock()
	p.closed = true
	faults := p.faults
	p.mu.Unlock()
	p.listener.Close()
	for _, i := range faults {
		i.Remove()
	}
	p.Cut()
	p.work.Wait()
}

// Inject puts a fault in. Of several that could fire at a frame the first does.
func (p *proxy) Inject(f Fault) *Injection {
	i := inject(f)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, i)
	return i
}

// Cut ends all connections, and says how many there were.
func (p *proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.conns {
		l.cut()
	}
	return len(p.conns)
}

// Down makes it end all connections and refuse new ones; Up takes them again.
func (p *proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.Cut()
}

// Up undoes Down.
func (p *proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Silence holds one direction of all connections, as a network does that lost its way: nothing is cut, nothing comes.
func (p *proxy) Silence(answers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := &p.gates[side(answers)]; *g == nil {
		*g = make(chan struct{})
	}
}

// Speak ends the silence of both directions; what was held goes on its way.
func (p *proxy) Speak() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, g := range p.gates {
		if g != nil {
			close(g)
			p.gates[i] = nil
		}
	}
}

func side(answer bool) int {
	if answer {
		return 1
	}
	return 0
}

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.work.Go(func() { p.serve(c) })
	}
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	refused := p.down || p.closed
	p.mu.Unlock()
	if refused {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var d net.Dialer
	server, err := d.DialContext(ctx, "tcp", p.target)
	if err != nil {
		return
	}
	// What the kernel takes in while a frame is held is as good as sent: a client that is stopped then must not have sent
	// everything.
	if c, ok := client.(*net.TCPConn); ok {
		c.SetReadBuffer(64 << 10)
	}
	l := &link{p: p, client: client, server: server, r: [2]*bufio.Reader{bufio.NewReader(client), bufio.NewReader(server)}, over: make(chan struct{}), dialect: p.dialect()}
	p.mu.Lock()
	if p.down || p.closed {
		l.cut()
	}
	p.count++
	l.number = p.count
	p.conns[l] = true
	p.mu.Unlock()
	defer func() {
		l.cut()
		p.mu.Lock()
		delete(p.conns, l)
		p.mu.Unlock()
	}()
	if on, err := l.dialect.open(l); err != nil || !on {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(false); l.cut() })
	both.Go(func() { l.pump(true); l.cut() })
	both.Wait()
	if l.losing != nil && !l.mute {
		l.losing.missed() // it was cut for another reason before the answer came
	}
}

// decide finds the fault that fires at a frame.
func (p *proxy) decide(f Frame) (*Injection, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gate := p.gates[side(f.Answer)]
	for _, i := range p.faults {
		if i.fires(f) {
			return i, gate
		}
	}
	return nil, gate
}

// link is one connection.
type link struct {
	p              *proxy
	number         int
	client, server net.Conn
	r              [2]*bufio.Reader // from the client, from the server
	dialect        dialect
	once           sync.Once
	over           chan struct{} // closed when it is cut

	mu      sync.Mutex
	losing  *Injection // the answer to request is not handed on
	request Frame
	mute    bool // no answer is handed on any more
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.over)
		l.client.Close()
		l.server.Close()
	})
}

// wait waits until a channel is closed, or the link is cut: false.
func (l *link) wait(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-l.over:
		return false
	}
}

func (l *link) pump(answers bool) {
	in, to, read := l.r[0], l.server, l.dialect.request
	if answers {
		in, to, read = l.r[1], l.client, l.dialect.answer
	}
	out := bufio.NewWriter(to)
	for {
		f, raw, err := read(in)
		if err != nil {
			out.Flush()
			return
		}
		f.Conn, f.Answer = l.number, answers
		if answers {
			on, cut := l.lost(f)
			if cut {
				return
			}
			if !on {
				continue
			}
		}
		i, gate := l.p.decide(f)
		if (i != nil || gate != nil) && out.Flush() != nil {
			return
		}
		if gate != nil && !l.wait(gate) {
			return
		}
		after := false
		if i != nil {
			switch i.fault.Do {
			case CutBefore:
				i.done()
				return
			case CutAfter:
				after = true
			case LoseAnswer, HoldAnswer:
				if !l.lose(i, f) {
					i.missed()
				}
			case Hold:
				i.done()
				if !l.wait(i.release) {
					return
				}
			}
		}
		_, err = out.Write(raw)
		if err == nil && (in.Buffered() == 0 || after) {
			err = out.Flush()
		}
		if after && err == nil {
			i.done()
		} else if after {
			i.missed()
		}
		if after || err != nil {
			return
		}
	}
}

// lose makes the link lose, or hold, the answer to a request: one at a time.
func (l *link) lose(i *Injection, request Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.losing != nil {
		return false
	}
	l.losing, l.request = i, request
	return true
}

// lost says whether an answer is handed on, and whether the link ends here.
func (l *link) lost(f Frame) (on, cut bool) {
	l.mu.Lock()
	i, request, mute := l.losing, l.request, l.mute
	l.mu.Unlock()
	if mute {
		return false, false
	}
	if i == nil {
		return true, false
	}
	part, last := l.dialect.belongs(request, f)
	if !part {
		return true, false
	}
	if !last {
		return false, false
	}
	l.mu.Lock()
	l.mute = true
	l.mu.Unlock()
	i.done()
	if i.fault.Do == HoldAnswer {
		// What is sent meanwhile still arrives.
		l.p.work.Go(func() { l.wait(i.release); l.cut() })
		return false, false
	}
	return false, true
}

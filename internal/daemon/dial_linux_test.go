package daemon

import (
	"net"
	"syscall"
	"testing"
)

func TestConnectionsToTheDatabaseAreBoundInTheirSilence(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := dialDatabase(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		ms, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout)
		if err != nil || int64(ms) != unanswered.Milliseconds() {
			t.Errorf("%d ms, %v", ms, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

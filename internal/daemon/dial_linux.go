package daemon

import (
	"strings"
	"syscall"
)

const tcpUserTimeout = 0x12 // TCP_USER_TIMEOUT, which package syscall doesn't name

func boundUnanswered(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(unanswered.Milliseconds()))
	}); e != nil {
		return e
	}
	return err
}

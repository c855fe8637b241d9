package devenv

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// PortTakenError says that something else listens on a port that was asked for.
type PortTakenError struct {
	Service string // "PostgreSQL" or "Kafka"
	Port    int
}

func (e *PortTakenError) Error() string {
	return fmt.Sprintf("%s port %d is taken on 127.0.0.1; choose another, or 0 for a free one", e.Service, e.Port)
}

// probePort returns a port nothing listens on: port itself, or for 0 one that the kernel picks.
// Nothing reserves it, so whoever takes it must be ready to find it taken after all.
func probePort(service string, port int) (int, error) {
	l, err := net.Listen("tcp", loopback(port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return 0, &PortTakenError{Service: service, Port: port}
	}
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

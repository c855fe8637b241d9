package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// TLS names files in PEM format. They are read again at every handshake, so that
// new certificates need no restart.
type TLS struct {
	CA   string // of the brokers; empty: the system's
	Cert string // of this client; empty: none
	Key  string // of Cert
	// ServerName is what the brokers' certificates are for; empty: the host that
	// is dialled.
	ServerName string
}

// SASL says who this client is.
type SASL struct {
	Mechanism string // PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
	User      string
	// Password is asked at every authentication, so that a secret that changes
	// needs no restart. See [Password] and [PasswordFile].
	Password func() (string, error)
}

// Password is always the same.
func Password(secret string) func() (string, error) {
	return func() (string, error) { return secret, nil }
}

// PasswordFile is what the file holds, without the line end.
func PasswordFile(name string) func() (string, error) {
	return func() (string, error) {
		b, err := os.ReadFile(name)
		return strings.TrimRight(string(b), "\r\n"), err
	}
}

// Mechanisms are those that [SASL] knows.
var Mechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// Security gives the client options for a broker behind TLS, SASL, or both; nil
// leaves one out. Files that can't be read are an error at once.
func Security(t *TLS, s *SASL) ([]kgo.Opt, error) {
	var opts []kgo.Opt
	if t != nil {
		if err := t.Check(); err != nil {
			return nil, err
		}
		opts = append(opts, kgo.Dialer(t.Dial))
	}
	if s != nil {
		m, err := s.mechanism()
		if err != nil {
			return nil, err
		}
		opts = append(opts, kgo.SASL(m))
	}
	return opts, nil
}

// Check reads the files, and says what is wrong with them.
func (t *TLS) Check() error {
	_, err := t.config()
	return err
}

func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{ServerName: t.ServerName, MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls: ca: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: ca: no certificate in %s", t.CA)
		}
	}
	if t.Cert != "" || t.Key != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Dial opens a connection by the files as they are now.
func (t *TLS) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := t.config()
	if err != nil {
		return nil, err
	}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: c}
	return d.DialContext(ctx, network, addr)
}

func (s *SASL) mechanism() (sasl.Mechanism, error) {
	if s.User == "" || s.Password == nil {
		return nil, errors.New("sasl: user and password are needed")
	}
	if _, err := s.Password(); err != nil {
		return nil, fmt.Errorf("sasl: password: %w", err)
	}
	salted := func(context.Context) (scram.Auth, error) {
		pw, err := s.Password()
		return scram.Auth{User: s.User, Pass: pw}, err
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			pw, err := s.Password()
			return plain.Auth{User: s.User, Pass: pw}, err
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(salted), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(salted), nil
	}
	return nil, fmt.Errorf("sasl: mechanism %q is none of %s", s.Mechanism, strings.Join(Mechanisms, ", "))
}

package cases_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/internal/testenv"
)

// authority signs certificates that end when it is told.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func (a *authority) issue(t *testing.T, until time.Time) (cert, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	a.n++
	c := &x509.Certificate{
		SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: "semel test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		parent, signer = c, own
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &own.PublicKey, signer)
	must(t, err)
	if a.cert == nil {
		a.cert, err = x509.ParseCertificate(der)
		must(t, err)
		a.key = own
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(own)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// G52: the client's certificate ends while it runs. Health is red and says why; a new file is taken without a restart, and
// nothing is lost.
func TestACertificateThatEndsIsRedUntilANewOneIsThere(t *testing.T) {
	t.Parallel()
	dir, a := t.TempDir(), &authority{}
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path+"~", data, 0o600))
		must(t, os.Rename(path+"~", path))
		return path
	}
	root, _ := a.issue(t, time.Now().Add(time.Hour))
	ca := file("ca.pem", root)
	serverCert, serverKey := a.issue(t, time.Now().Add(time.Hour))
	server, err := tls.X509KeyPair(serverCert, serverKey)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	var refused atomic.Int64
	var ahead atomic.Int64 // of the broker's clock
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"), kfake.GroupMinSessionTimeout(time.Second), kfake.TLS(&tls.Config{
		Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAnyClientCert,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			c, err := x509.ParseCertificate(raw[0])
			if err == nil {
				_, err = c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: time.Now().Add(time.Duration(ahead.Load())), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
			}
			if err != nil {
				refused.Add(1)
			}
			return err
		},
	}))
	must(t, err)
	t.Cleanup(cluster.Close)

	cert, key := a.issue(t, time.Now().Add(10*time.Minute))
	own, err := tls.X509KeyPair(a.issue(t, time.Now().Add(time.Hour)))
	must(t, err)
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DialTLSConfig(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}}))
	must(t, err)
	t.Cleanup(cl.Close)
	send := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			cl.Produce(within(t), &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, `{"id":%d}`, i)}, nil)
		}
		must(t, cl.Flush(within(t)))
	}
	s := makeScene(t, cluster.ListenAddrs(), "t", testenv.Postgres(t), "CREATE TABLE s (id int PRIMARY KEY)")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	l.Close()
	text := strings.Replace(s.text(s.route("id: {position: true}", "to: {table: s, write: insert}")), "kafka: {",
		fmt.Sprintf("kafka: {tls: {ca: %q, cert: %q, key: %q}, ", ca, file("c.pem", cert), file("k.pem", key)), 1)
	text = strings.Replace(text, `listen: ""`, fmt.Sprintf("listen: %q", address), 1)
	f, err := config.Parse("semel.yaml", []byte(text), func(string) (string, bool) { return "", false })
	must(t, err)
	r := s.startFile(f)
	said := ""
	health := func(begins string) func() bool {
		return func() bool {
			a, err := http.Get("http://" + address + "/health")
			if err != nil {
				return false
			}
			defer a.Body.Close()
			b, _ := io.ReadAll(a.Body)
			said = fmt.Sprintf("%d %s", a.StatusCode, b)
			return strings.HasPrefix(said, begins)
		}
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(0, 10)
	until(t, "it flows", func() bool { return s.count("s") == 10 })
	until(t, "it is healthy", health("200"))

	ahead.Store(int64(20 * time.Minute))
	// The connections that are there outlive their certificate; now they are cut.
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		return nil, io.EOF, refused.Load() == 0
	})
	until(t, "health is red and says why", func() bool { return health("503")() && strings.Contains(said, "certificate") })
	if refused.Load() == 0 {
		t.Error("no certificate was refused")
	}
	send(10, 20)
	r.alive()

	cert, key = a.issue(t, time.Now().Add(time.Hour))
	file("k.pem", key)
	file("c.pem", cert)
	until(t, "it flows again", func() bool { return s.count("s") == 20 })
	until(t, "it is healthy again", health("200"))
	if res := r.stop(); len(res.Halted) != 0 {
		t.Errorf("halted: %+v", res.Halted)
	}
	s.want("SELECT count(*) FROM semel.dead_letter", "0")
}

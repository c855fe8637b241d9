// Package testenv gives tests real services: a PostgreSQL database of their own, topics on a Kafka broker, and
// servers of their own to crash. A service that can't be had fails the test with the command that brings it;
// nothing is skipped.
//
// Services are shared by the tests of a binary and start when first asked for. SEMEL_TEST_POSTGRES (the URL of a
// superuser) and SEMEL_TEST_KAFKA (broker addresses) name servers to use instead: `make test` starts one PostgreSQL
// for all packages, `make test-kafka` a real Apache Kafka.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
package testenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// wait bounds everything here that could hang.
const wait = 90 * time.Second

var (
	mu       sync.Mutex // guards what follows
	closers  []func()   // of what the tests share; run last to first
	tempRoot string
)

// Main runs the tests of a package, stops what they shared, and fails if goroutines are left over. It does not return.
func Main(m *testing.M) {
	code := m.Run()
	Close()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left over after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Close stops what the tests share. [Main] calls it; only a TestMain of another shape needs to.
func Close() {
	mu.Lock()
	defer mu.Unlock()
	for i := len(closers) - 1; i >= 0; i-- {
		closers[i]()
	}
	closers = nil
}

// shared makes a thing once for all tests of the binary. A failure is kept too: each test that asks hears of it.
type shared[T any] struct {
	once sync.Once
	v    T
	err  error
}

func (s *shared[T]) get(make func() (T, error)) (T, error) {
	s.once.Do(func() { s.v, s.err = make() })
	return s.v, s.err
}

func onClose(f func()) {
	mu.Lock()
	defer mu.Unlock()
	closers = append(closers, f)
}

// tempDir returns a new folder under one of this test binary, which Close removes. Folders of test binaries that
// were killed are removed on the way.
func tempDir(name string) (string, error) {
	mu.Lock()
	defer mu.Unlock()
	if tempRoot == "" {
		sweep()
		root, err := os.MkdirTemp("", "semel-test-*")
		if err != nil {
			return "", err
		}
		os.Chmod(root, 0o755) // PostgreSQL may have to run as another user
		held, err := os.OpenFile(filepath.Join(root, "held"), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", err
		}
		if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return "", err
		}
		tempRoot = root
		closers = append([]func(){func() { os.RemoveAll(root); held.Close() }}, closers...)
	}
	return os.MkdirTemp(tempRoot, name+"-*")
}

// sweep removes the folders of test binaries that are gone: nobody holds their lock.
func sweep() {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "semel-test-*", "held"))
	for _, name := range old {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// A PostgreSQL that lost its parent may need a moment to end: leave young ones to the next sweep.
		if fi, err := f.Stat(); err == nil && time.Since(fi.ModTime()) > time.Minute &&
			syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(filepath.Dir(name))
		}
		f.Close()
	}
}

func timeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), wait)
}

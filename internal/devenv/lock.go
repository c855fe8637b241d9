package devenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// InUseError says that another process holds a folder.
type InUseError struct {
	Dir string
	PID int // 0 when the holder has not written it yet
}

func (e *InUseError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("folder in use by another process: %s", e.Dir)
	}
	return fmt.Sprintf("folder in use by pid %d: %s", e.PID, e.Dir)
}

// lockDir takes the folder for this process until it is given back or the process is gone. The lock
// belongs to the open file, so a second taker inside the same process is refused as well. unlock gives it back.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			b, _ := io.ReadAll(io.LimitReader(f, 32))
			pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			return nil, &InUseError{Dir: dir, PID: pid}
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// unlock gives a folder back. Closing alone would not do: a child being forked just now, by any goroutine, holds the
// open file too until it executes its program.
func unlock(f *os.File) {
	if f != nil {
		syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
		f.Close()
	}
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// makeDir makes dir and returns its absolute path free of symbolic links: a process is later known by that path.
func makeDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

package demo

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// makeDir makes the folder of one show, and answers what removes it. Folders of shows
// that were killed are removed on the way: nobody holds their lock.
func makeDir() (dir string, remove func(), err error) {
	const pattern, lock = "semel-demo-*", "held"
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), pattern, lock))
	for _, name := range old {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// A PostgreSQL that lost its parent may need a moment to end: young ones are left to the next.
		if fi, err := f.Stat(); err == nil && time.Since(fi.ModTime()) > time.Minute && hold(f) == nil {
			os.RemoveAll(filepath.Dir(name))
		}
		f.Close()
	}
	if dir, err = os.MkdirTemp("", pattern); err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // PostgreSQL may have to run as another user
		return "", nil, err
	}
	held, err := os.OpenFile(filepath.Join(dir, lock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir); held.Close() }, hold(held)
}

func hold(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

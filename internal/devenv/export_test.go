package devenv

import "testing"

// Forget lets go of the folder while the server runs on, as a killed program does where no signal follows its death.
func (p *Postgres) Forget() { p.release() }

// NothingInstalled hides the PostgreSQL of this machine from t, which must not be parallel.
func NothingInstalled(t *testing.T) {
	old := knownFolders
	knownFolders = nil
	t.Cleanup(func() { knownFolders = old })
	t.Setenv("PATH", "")
	t.Setenv("SEMEL_POSTGRES_BIN", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
}

var UnpackBundle = unpackBundle

// Alive is whether a process runs; one that is dead but not waited for does not.
func Alive(pid int) bool { return commandOf(pid) != nil }

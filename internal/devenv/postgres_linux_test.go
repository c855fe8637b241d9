package devenv_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/semelhq/semel/internal/devenv"
)

func TestRootCanRunItWithoutUserNamespaces(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root, who alone needs them")
	}
	dir := openDir(t) + "/data"
	pg := startPostgres(t, devenv.PostgresConfig{Dir: dir})
	writeRows(t, pg.URL())
	pg.Kill()

	devenv.WithoutNamespaces(t)
	_, bin := readable(t, openDir(t))
	pg = startPostgres(t, devenv.PostgresConfig{Dir: dir, Bin: bin})
	wantRows(t, pg.URL())
	fi, err := os.Stat(dir + "/data")
	if err != nil {
		t.Fatal(err)
	}
	if uid := fi.Sys().(*syscall.Stat_t).Uid; uid != 65534 {
		t.Errorf("the data belongs to uid %d", uid)
	}
}

func TestFolderThatTheOtherUserCantReachIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root, who alone needs another user")
	}
	devenv.WithoutNamespaces(t)
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, bin := readable(t, openDir(t))
	if _, err := devenv.StartPostgres(t.Context(), devenv.PostgresConfig{Dir: closed + "/in", Bin: bin}); err == nil {
		t.Error("started in a closed folder")
	}
}

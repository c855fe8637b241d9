package devenv_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semelhq/semel/internal/devenv"
)

func TestRowsAndRecordsSurviveTheKillOfTheProgram(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a folder with spaces", strings.Repeat("and a long name ", 8))
	p := startProgram(t, dir, nil)
	writeRows(t, p.url)
	createTopic(t, p.brokers, "a")
	produce(t, p.brokers, "a", 100)
	p.kill()
	env, err := devenv.Start(t.Context(), devenv.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	wantRows(t, env.DatabaseURL())
	wantRecords(t, env.Brokers(), "a", 100)
}

func TestRowsSurviveTheKillOfEverything(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, devenv.PostgresConfig{Dir: t.TempDir()})
	url := pg.URL()
	writeRows(t, url)
	pg.Kill()
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pg.URL() != url {
		t.Errorf("it was at %s and is at %s", url, pg.URL())
	}
	wantRows(t, url)
}

func TestServerEndsWithTheProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux signals the death of a parent; elsewhere TestLeftoverIsStopped is the guarantee")
	}
	t.Parallel()
	p := startProgram(t, t.TempDir(), nil)
	p.kill()
	for end := time.Now().Add(20 * time.Second); devenv.Alive(p.pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("PostgreSQL, pid %d, outlives its parent", p.pid)
		}
	}
}

func TestPlainUserCanRunIt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("all the other tests show it")
	}
	t.Parallel()
	dir := openDir(t)
	exe, bin := readable(t, dir)
	home := filepath.Join(dir, "home")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Chown(home, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, filepath.Join(home, "data"), func(c *exec.Cmd) {
		c.Path, c.Dir = exe, home
		c.Env = append(c.Env, "HOME="+home, "SEMEL_POSTGRES_BIN="+bin)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	writeRows(t, p.url)
	wantRows(t, p.url)
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

func TestLeftoverIsStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	left := startPostgres(t, devenv.PostgresConfig{Dir: dir})
	writeRows(t, left.URL())
	left.Forget()
	wantRows(t, startPostgres(t, devenv.PostgresConfig{Dir: dir}).URL())
	select {
	case <-left.Done():
	default:
		t.Error("two servers on one folder")
	}
}

func TestStrangerInThePIDFileIsLeftAlone(t *testing.T) {
	t.Parallel()
	stranger := exec.Command("sleep", "600")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()

	dir := t.TempDir()
	pg := startPostgres(t, devenv.PostgresConfig{Dir: dir})
	pg.Kill()
	name := filepath.Join(dir, "data", "postmaster.pid")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\n")
	if err := os.WriteFile(name, fmt.Appendf(nil, "%d\n%s", stranger.Process.Pid, rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger: %v", err)
	}
}

func TestOrphansOfADeadServerAreEnded(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, devenv.PostgresConfig{Dir: t.TempDir()})
	c := connect(t, pg.URL())
	orphan := int(c.PgConn().PID())
	// A session that is busy, and so does not see that its server is gone.
	go c.Exec(context.Background(), "SELECT count(*) FROM generate_series(1, 10000000000) AS n WHERE n < 0")
	watch := connect(t, pg.URL())
	for busy := false; !busy; {
		if err := watch.QueryRow(t.Context(), "SELECT state = 'active' FROM pg_stat_activity WHERE pid = $1", orphan).Scan(&busy); err != nil {
			t.Fatal(err)
		}
	}
	syscall.Kill(pg.PID(), syscall.SIGKILL)
	<-pg.Done()
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if devenv.Alive(orphan) {
		t.Error("a process of the dead server works on the data of the new one")
	}
}

func TestHalfMadeDatabaseIsMadeAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	startPostgres(t, devenv.PostgresConfig{Dir: dir})
}

func TestFolderInUseNamesTheHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startProgram(t, dir, nil)
	_, err := devenv.StartPostgres(t.Context(), devenv.PostgresConfig{Dir: dir + "/postgres"})
	var inUse *devenv.InUseError
	if !errors.As(err, &inUse) || inUse.PID != p.cmd.Process.Pid {
		t.Errorf("%v; want pid %d", err, p.cmd.Process.Pid)
	}
	if err := p.end(); err != nil {
		t.Error(err)
	}
	startPostgres(t, devenv.PostgresConfig{Dir: dir + "/postgres"})
}

func TestTakenPortIsNamed(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	var taken *devenv.PortTakenError
	if _, err := devenv.StartPostgres(t.Context(), devenv.PostgresConfig{Dir: t.TempDir(), Port: port}); !errors.As(err, &taken) || taken.Port != port {
		t.Errorf("PostgreSQL: %v", err)
	}
	if _, err := devenv.StartBroker(t.Context(), devenv.BrokerConfig{Port: port}); !errors.As(err, &taken) || taken.Service != "Kafka" {
		t.Errorf("Kafka: %v", err)
	}
}

func TestBadSettingShowsTheServersLog(t *testing.T) {
	t.Parallel()
	_, err := devenv.StartPostgres(t.Context(), devenv.PostgresConfig{Dir: t.TempDir(), Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("%v", err)
	}
}

func TestStopIsCleanAndFast(t *testing.T) {
	t.Parallel()
	pg := startPostgres(t, devenv.PostgresConfig{Dir: t.TempDir()})
	connect(t, pg.URL()) // an idle session does not hold it up
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := pg.Stop(ctx); err != nil {
		t.Error(err)
	}
	if err := pg.Stop(ctx); err != nil {
		t.Error("again:", err)
	}
}

func TestFolderOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "data"), 0o700),
		os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("12\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := devenv.StartPostgres(t.Context(), devenv.PostgresConfig{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "made by PostgreSQL 12") {
		t.Errorf("%v", err)
	}
}

func TestNoPostgresListsTheWaysToGetIt(t *testing.T) {
	devenv.NothingInstalled(t)
	_, _, err := devenv.FindPostgres(t.Context(), 0, io.Discard)
	var none *devenv.NoPostgresError
	if !errors.As(err, &none) {
		t.Fatalf("%v", err)
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "npm is not in PATH") {
		t.Errorf("%v", err)
	}
	for _, way := range []string{"npm in PATH", "apt-get install", "dnf install", "brew install", "SEMEL_POSTGRES_BIN"} {
		if !strings.Contains(none.Hint(), way) {
			t.Errorf("no word of %q in: %s", way, none.Hint())
		}
	}
}

func TestNamedFolderIsUsedOrRefused(t *testing.T) {
	empty, old := t.TempDir(), t.TempDir()
	for _, program := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(old, program), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.24'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{empty, old} {
		t.Setenv("SEMEL_POSTGRES_BIN", dir)
		_, _, err := devenv.FindPostgres(t.Context(), 0, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "SEMEL_POSTGRES_BIN="+dir) {
			t.Errorf("%v", err)
		}
	}
}

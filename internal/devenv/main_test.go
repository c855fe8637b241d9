package devenv_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel/internal/devenv"
	"github.com/semelhq/semel/internal/testenv"
)

// TestMain is also the program that some tests kill: it starts both services in a folder, says where, and waits.
func TestMain(m *testing.M) {
	if dir := os.Getenv("DEVENV_TEST_PROGRAM"); dir != "" {
		env, err := devenv.Start(context.Background(), devenv.Config{Dir: dir})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(env.Postgres().PID(), env.DatabaseURL(), env.Brokers())
		io.Copy(io.Discard, os.Stdin) // until our end, or theirs
		if err := env.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}

// A program is our own test binary running as above.
type program struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	pid     int // of its PostgreSQL
	url     string
	brokers string
}

func startProgram(t *testing.T, dir string, change func(*exec.Cmd)) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), "DEVENV_TEST_PROGRAM="+dir)
	p.cmd.Stderr = os.Stderr
	if change != nil {
		change(p.cmd)
	}
	p.stdin, err = p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the program ended: %v", p.cmd.Wait())
	}
	if _, err := fmt.Sscan(line, &p.pid, &p.url, &p.brokers); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return p
}

// kill is SIGKILL for the program alone; its PostgreSQL is not told.
func (p *program) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// end lets it stop by itself.
func (p *program) end() error {
	p.stdin.Close()
	return p.cmd.Wait()
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func writeRows(t *testing.T, url string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), "CREATE TABLE r AS SELECT generate_series(1, 1000) AS n"); err != nil {
		t.Fatal(err)
	}
}

func wantRows(t *testing.T, url string) {
	t.Helper()
	var n int
	if err := connect(t, url).QueryRow(t.Context(), "SELECT count(DISTINCT n) FROM r").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 1000 {
		t.Errorf("%d rows, want 1000", n)
	}
}

func startPostgres(t *testing.T, cfg devenv.PostgresConfig) *devenv.Postgres {
	t.Helper()
	pg, err := devenv.StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pg.Kill)
	return pg
}

// openDir is a folder that any user may pass through; t.TempDir is closed.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "devenv-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// readable returns a copy of this test binary, and a PostgreSQL, that any user may run.
func readable(t *testing.T, dir string) (exe, bin string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	exe = filepath.Join(dir, "program")
	if err := os.WriteFile(exe, b, 0o755); err != nil {
		t.Fatal(err)
	}
	bin, _, err = devenv.FindPostgres(t.Context(), 0, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if home, _ := os.UserHomeDir(); home != "" && strings.HasPrefix(bin, home) {
		if err := os.CopyFS(filepath.Join(dir, "postgresql"), os.DirFS(filepath.Dir(bin))); err != nil {
			t.Fatal(err)
		}
		bin = filepath.Join(dir, "postgresql", "bin")
	}
	return exe, bin
}

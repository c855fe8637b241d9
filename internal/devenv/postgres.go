package devenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// PostgresConfig says which PostgreSQL to start, and where.
type PostgresConfig struct {
	// Dir is the folder that holds everything: the lock, the log, the data. It is made if missing, and its rows are
	// there again at the next start. Required.
	Dir string
	// Port on 127.0.0.1; 0 takes a free one, which stays the same over Start after Stop or Kill.
	Port int
	// Bin is the folder of the programs; empty means what [FindPostgres] finds.
	Bin string
	// Settings are added to the server's configuration, and win over ours. fsync off belongs in tests alone.
	Settings map[string]string
	// Talk hears what takes long and is not asked for: fetching PostgreSQL. Default: standard error.
	Talk io.Writer
}

// Postgres is a PostgreSQL server that ends with this process: with its parent's death it shuts down cleanly by
// itself on Linux; elsewhere what is left behind is stopped by the next start on the folder.
type Postgres struct {
	cfg  PostgresConfig
	bin  string
	as   runAs
	port int

	mu   sync.Mutex // guards what follows, and orders Start, Stop and Kill
	lock *os.File   // held while the server runs
	pid  int
	done chan struct{} // closed when the server is gone
	end  error         // how it ended, once done is closed
}

// StartPostgres makes the folder a database if it is none yet, starts the server and returns when it takes
// connections. The errors that a caller may want to tell apart are [InUseError], [PortTakenError] and
// [NoPostgresError].
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Dir == "" {
		return nil, errors.New("devenv: PostgresConfig.Dir is empty")
	}
	if cfg.Talk == nil {
		cfg.Talk = os.Stderr
	}
	dir, err := makeDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	cfg.Dir = dir
	p := &Postgres{cfg: cfg}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// URL names the database "postgres" of its superuser; there is no password, as it listens on the loopback alone.
func (p *Postgres) URL() string { return p.DatabaseURL("postgres") }

// DatabaseURL names another database of this server.
func (p *Postgres) DatabaseURL(name string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, name)
}

// Port is where it listens, on 127.0.0.1.
func (p *Postgres) Port() int { return p.port }

// Dir is its folder, absolute.
func (p *Postgres) Dir() string { return p.cfg.Dir }

// LogFile is where the server writes its log.
func (p *Postgres) LogFile() string { return filepath.Join(p.cfg.Dir, "postgres.log") }

func (p *Postgres) data() string { return filepath.Join(p.cfg.Dir, "data") }

// PID is that of the server's first process, for tests that signal it.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

// Done is closed when the server that runs now is gone, for whatever reason.
func (p *Postgres) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Start starts the server again after Stop, Kill, or its own end, on the same folder and port.
func (p *Postgres) Start(ctx context.Context) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done != nil {
		select {
		case <-p.done:
			p.release()
		default:
			return errors.New("PostgreSQL runs already")
		}
	}
	p.lock, err = lockDir(p.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	if err := stopLeftover(ctx, p.data()); err != nil {
		return err
	}
	if p.bin == "" {
		if err := p.findPrograms(ctx); err != nil {
			return err
		}
	}
	if err := p.makeDatabase(ctx); err != nil {
		return err
	}
	if p.port != 0 || p.cfg.Port != 0 {
		return p.startOn(ctx, max(p.port, p.cfg.Port))
	}
	for try := 1; ; try++ { // a free port may be taken before the server has it
		port, err := probePort("PostgreSQL", 0)
		if err != nil {
			return err
		}
		if err = p.startOn(ctx, port); err == nil || ctx.Err() != nil || try == 3 {
			return err
		}
	}
}

func (p *Postgres) release() {
	unlock(p.lock)
	p.lock = nil
}

func (p *Postgres) findPrograms(ctx context.Context) error {
	major := 0
	if b, err := os.ReadFile(filepath.Join(p.data(), "PG_VERSION")); err == nil {
		major, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	bin := p.cfg.Bin
	if bin == "" {
		var err error
		if bin, _, err = FindPostgres(ctx, major, p.cfg.Talk); err != nil {
			return err
		}
	} else if have, err := majorOf(ctx, bin); err != nil {
		return fmt.Errorf("%s: %w", bin, err)
	} else if major != 0 && major != have {
		return wrongMajor(have, major)
	}
	p.bin, p.as = bin, whom(ctx, bin)
	return nil
}

// makeDatabase runs initdb, if need be, beside the data folder and renames: a kill in the middle leaves no half.
func (p *Postgres) makeDatabase(ctx context.Context) error {
	if err := p.own(); err != nil {
		return err
	}
	if _, err := os.Stat(p.data()); err == nil {
		return nil
	}
	tmp := p.data() + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	out, err := p.run(ctx, "initdb", "-D", tmp, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err != nil {
		return fmt.Errorf("initdb in %s: %w\n%s", p.cfg.Dir, err, out)
	}
	return os.Rename(tmp, p.data())
}

// own gives the folder to the user that PostgreSQL runs as. Only root has something to give; the folder may come
// from a run as another user.
func (p *Postgres) own() error {
	if os.Getuid() != 0 {
		return nil
	}
	if p.as.uid != 0 {
		if at := closedParent(p.cfg.Dir); at != "" {
			return fmt.Errorf("PostgreSQL does not run as root; as uid %d it can't reach %s, as %s is closed to others: choose a folder elsewhere", p.as.uid, p.cfg.Dir, at)
		}
	}
	owner := func(path string) int {
		fi, err := os.Lstat(path)
		if err != nil {
			return p.as.uid
		}
		return int(fi.Sys().(*syscall.Stat_t).Uid)
	}
	if owner(p.cfg.Dir) == p.as.uid && owner(p.data()) == p.as.uid {
		return nil
	}
	return filepath.WalkDir(p.cfg.Dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, p.as.uid, p.as.gid)
	})
}

// closedParent returns the folder on the way to dir that others can't pass through.
func closedParent(dir string) string {
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		if fi, err := os.Stat(d); err == nil && fi.Mode()&0o001 == 0 {
			return d
		}
		if d == filepath.Dir(d) {
			return ""
		}
	}
}

// run runs one of PostgreSQL's programs to its end, and returns what it said.
func (p *Postgres) run(ctx context.Context, program string, args ...string) ([]byte, error) {
	runtime.LockOSThread() // the signal at our death follows this thread
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, program), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.cfg.Dir, environ(), p.as.attr(syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // initdb runs others
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// environ is ours without what would lead PostgreSQL's programs astray.
func environ() []string {
	return append(slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG")
	}), "LC_ALL=C")
}

// ours are the settings that development wants. No Unix socket: its path is limited to some 100 bytes, folders' are not.
var ours = map[string]string{
	"listen_addresses":        "127.0.0.1",
	"unix_socket_directories": "",
	"shared_buffers":          "64MB",
	"max_wal_size":            "1GB",
	"wal_level":               "logical",
	"jit":                     "off",
	"cluster_name":            "semel-dev",
}

func (p *Postgres) startOn(ctx context.Context, port int) error {
	if _, err := probePort("PostgreSQL", port); err != nil {
		return err
	}
	settings := maps.Clone(ours)
	maps.Copy(settings, p.cfg.Settings)
	args := []string{"-D", p.data(), "-h", "127.0.0.1", "-p", strconv.Itoa(port)}
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", k+"="+settings[k])
	}
	log, err := openLog(p.LogFile())
	if err != nil {
		return err
	}
	defer log.Close()
	from, _ := log.Seek(0, io.SeekEnd)

	cmd := exec.Command(filepath.Join(p.bin, "postgres"), args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = p.cfg.Dir, environ(), log, log
	cmd.SysProcAttr = p.as.attr(syscall.SIGINT) // SIGINT is a fast shutdown: no recovery at the next start
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the signal at our death comes when this thread ends: keep it until the server is gone
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.end = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-done
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	p.port, p.pid, p.done = port, cmd.Process.Pid, done
	if err := p.awaitReady(ctx); err != nil {
		p.killAll()
		return fmt.Errorf("%w; its log says:\n%s", err, logFrom(p.LogFile(), from))
	}
	return nil
}

// awaitReady waits until the server itself says in its pid file that it takes connections.
func (p *Postgres) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if pid, status := readPIDFile(p.data()); pid == p.pid && status == "ready" {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("PostgreSQL ended while starting: %v", p.end)
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL is not ready: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// Stop shuts the server down fast but cleanly: open transactions are rolled back, no recovery is due afterwards.
// It returns when the server is gone; if ctx ends first it is killed. Stopping what is stopped is no error.
func (p *Postgres) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		return nil
	}
	defer p.release()
	select {
	case <-p.done:
		return nil
	default:
	}
	syscall.Kill(p.pid, syscall.SIGINT)
	select {
	case <-p.done:
		if p.end != nil {
			return fmt.Errorf("PostgreSQL ended: %w", p.end)
		}
		return nil
	case <-ctx.Done():
		p.killAll()
		return fmt.Errorf("PostgreSQL did not stop in time and was killed: %w", context.Cause(ctx))
	}
}

// Kill is a crash: SIGKILL for every process of the server at once. It returns when all are gone.
func (p *Postgres) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		return
	}
	p.killAll()
	p.release()
}

func (p *Postgres) killAll() {
	select {
	case <-p.done:
		return
	default:
	}
	// Stopped first, so that it starts no process between the listing and its death. Its children lead groups of
	// their own: one signal to its group would leave them.
	syscall.Kill(p.pid, syscall.SIGSTOP)
	await(p.pid, func(state byte) bool { return state == 'T' || ended(state) })
	all := processesOn(p.data(), p.pid)
	kill(all)
	syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.done
	awaitGone(all)
}

func kill(pids []int) {
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// awaitGone waits for processes that were killed: they hold shared memory that the next start asks about.
func awaitGone(pids []int) {
	for _, pid := range pids {
		await(pid, ended)
	}
}

// ended says whether a process has let go of everything: its arguments are gone before its memory is.
func ended(state byte) bool { return state == 0 || state == 'Z' || state == 'X' }

// await waits until a process is in a state, as stateOf has them.
func await(pid int, is func(state byte) bool) {
	for end := time.Now().Add(5 * time.Second); !is(stateOf(pid)) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// stopLeftover stops the server that a dead process of ours left behind on data, and what its own death left behind
// of it. As we hold the folder's lock, nobody else wants them.
//
// The pid file is never removed: by it PostgreSQL finds the shared memory of a dead server, and refuses to start
// while a process of that one still works on the data.
func stopLeftover(ctx context.Context, data string) error {
	pid, _ := readPIDFile(data)
	if pid == 0 {
		return nil
	}
	ours := func() bool { return slices.Contains(commandOf(pid), data) }
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if !ours() {
			break
		}
		syscall.Kill(pid, sig)
		for end := time.Now().Add(10 * time.Second); ours() && time.Now().Before(end); {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	if ours() {
		return fmt.Errorf("the PostgreSQL left behind on %s, pid %d, can't be stopped", data, pid)
	}
	if runtime.GOOS == "linux" { // elsewhere an orphan can't be told from a stranger
		orphans := processesOn(data, pid)
		kill(orphans)
		awaitGone(orphans)
	}
	if syscall.Kill(pid, 0) == nil {
		return disownPIDFile(data)
	}
	return nil
}

// disownPIDFile puts our own process into a pid file that names a stranger, who got the number of a dead server.
// PostgreSQL would take a living stranger for a server; of its parent it knows that it is none.
func disownPIDFile(data string) error {
	name := filepath.Join(data, "postmaster.pid")
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, rest, _ := bytes.Cut(b, []byte("\n"))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%d\n%s", os.Getpid(), rest)
	return errors.Join(err, f.Close())
}

// readPIDFile returns what the server wrote into its pid file: process (line 1) and state (line 8).
func readPIDFile(data string) (pid int, status string) {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0, ""
	}
	lines := strings.Split(string(b), "\n")
	pid, _ = strconv.Atoi(strings.TrimSpace(lines[0]))
	if len(lines) >= 8 {
		status = strings.TrimSpace(lines[7])
	}
	return pid, status
}

// openLog opens the server's log for appending; a long one starts anew.
func openLog(name string) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if fi, err := os.Stat(name); err == nil && fi.Size() > 16<<20 {
		flags |= os.O_TRUNC
	}
	return os.OpenFile(name, flags, 0o600)
}

// logFrom returns the end of what was logged after an offset.
func logFrom(name string, from int64) []byte {
	b, err := os.ReadFile(name)
	if err != nil || int64(len(b)) < from {
		return nil
	}
	b = b[from:]
	return bytes.TrimSpace(b[max(0, len(b)-2000):])
}

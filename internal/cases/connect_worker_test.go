//go:build connect

package cases_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// worker is a real Kafka Connect in standalone mode, as a process of its own.
type worker struct {
	t          *testing.T
	dir, rest  string
	cmd        *exec.Cmd
	end        chan struct{}
	connectors map[string]map[string]string // what a worker that is started again is given again
}

// newWorker starts one. What it reads is committed rarely, so that one that is killed sends much again.
func newWorker(t *testing.T, brokers []string) *worker {
	t.Helper()
	w := &worker{t: t, dir: t.TempDir(), connectors: map[string]map[string]string{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w.rest = "http://" + l.Addr().String()
	l.Close()
	must(t, os.WriteFile(w.file("worker.properties"), fmt.Appendf(nil, `bootstrap.servers=%s
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
header.converter=org.apache.kafka.connect.json.JsonConverter
offset.storage.file.filename=%s
offset.flush.interval.ms=600000
plugin.discovery=service_load
listeners=%s
`, strings.Join(brokers, ","), w.file("offsets"), w.rest), 0o600))
	must(t, os.WriteFile(w.file("log4j2.properties"), []byte(`status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
`), 0o600))
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			said, _ := os.ReadFile(w.file("log"))
			t.Logf("Connect said:\n%.20000s", said)
		}
	})
	w.start()
	return w
}

func (w *worker) file(name string) string { return filepath.Join(w.dir, name) }

func (w *worker) start() {
	w.t.Helper()
	jars := os.Getenv("SEMEL_TEST_CONNECT")
	if jars == "" {
		w.t.Fatal("SEMEL_TEST_CONNECT names no jars of Kafka Connect: `make test-connect` fetches them")
	}
	log, err := os.OpenFile(w.file("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(w.t, err)
	defer log.Close()
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	w.cmd = exec.Command(java, "-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dlog4j2.configurationFile="+w.file("log4j2.properties"), "-cp", jars+"/*",
		"org.apache.kafka.connect.cli.ConnectStandalone", w.file("worker.properties"))
	w.cmd.Stdout, w.cmd.Stderr = log, log
	must(w.t, w.cmd.Start())
	w.end = make(chan struct{})
	go func(cmd *exec.Cmd, end chan struct{}) { _ = cmd.Wait(); close(end) }(w.cmd, w.end)
	eventually(w.t, "Connect answers", func() bool {
		select {
		case <-w.end:
			w.t.Fatal("Connect ended")
		default:
		}
		_, err := w.ask("GET", "/connectors", nil)
		return err == nil
	})
	for _, name := range slices.Sorted(maps.Keys(w.connectors)) {
		w.put(name, w.connectors[name])
	}
}

// eventually is until for what JVMs do.
func eventually(t testing.TB, what string, fact func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !fact(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// kill leaves it no time to commit anything.
func (w *worker) kill() {
	if w.cmd != nil {
		_ = w.cmd.Process.Kill()
		<-w.end
	}
}

// stopClean lets it commit the places that it has read to.
func (w *worker) stopClean() {
	w.t.Helper()
	must(w.t, w.cmd.Process.Signal(syscall.SIGTERM))
	eventually(w.t, "Connect ends", func() bool {
		select {
		case <-w.end:
			return true
		default:
			return false
		}
	})
}

func (w *worker) ask(method, path string, body any) (string, error) {
	b, err := json.Marshal(body)
	must(w.t, err)
	req, err := http.NewRequestWithContext(within(w.t), method, w.rest+path, bytes.NewReader(b))
	must(w.t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, res.Status, text)
	}
	return string(text), err
}

// give makes a connector.
func (w *worker) give(name string, config map[string]string) {
	w.t.Helper()
	eventually(w.t, name+" is taken", func() bool {
		_, err := w.ask("PUT", "/connectors/"+name+"/config", config)
		return err == nil
	})
}

// put makes a connector that is made again with the worker, and returns when its tasks run.
func (w *worker) put(name string, config map[string]string) {
	w.t.Helper()
	w.give(name, config)
	w.connectors[name] = config
	eventually(w.t, name+" runs", func() bool { return w.states(name) == "RUNNING RUNNING" })
}

// states are those of the connector and its tasks.
func (w *worker) states(name string) string {
	w.t.Helper()
	var status struct {
		Connector struct{ State string }
		Tasks     []struct{ State, Trace string }
	}
	text, err := w.ask("GET", "/connectors/"+name+"/status", nil)
	if err != nil || json.Unmarshal([]byte(text), &status) != nil {
		return "none"
	}
	states := status.Connector.State
	for _, task := range status.Tasks {
		states += " " + task.State
	}
	return states
}

// stop ends a connector's tasks, as an operator does before somebody else takes over its group.
func (w *worker) stop(name string) {
	w.t.Helper()
	_, err := w.ask("PUT", "/connectors/"+name+"/stop", nil)
	must(w.t, err)
	delete(w.connectors, name)
	eventually(w.t, name+" is stopped", func() bool { return w.states(name) == "STOPPED" })
}

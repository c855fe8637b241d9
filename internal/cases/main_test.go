package cases_test

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/semelhq/semel/internal/testenv"
)

// The process is far from UTC, so that a time that takes the process's zone shows.
func TestMain(m *testing.M) {
	os.Setenv("TZ", "Asia/Tokyo")
	zone, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		panic(err)
	}
	time.Local = zone
	// Most of the time these tests wait: for locks, sessions, time-outs.
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		f.Value.Set("6")
	}
	code := m.Run()
	testenv.Close()
	os.RemoveAll(built.dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left over after the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

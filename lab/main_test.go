package lab_test

import (
	"flag"
	"os"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// The test binary is also the process that tests kill: see child_test.go.
func TestMain(m *testing.M) {
	if s := os.Getenv(specVariable); s != "" {
		os.Exit(beChild(s))
	}
	// These tests wait more than they work.
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		flag.Set("test.parallel", "6")
	}
	testenv.Main(m)
}

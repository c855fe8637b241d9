package lab_test

import (
	"os"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

// The test binary is also the process that tests kill: see child_test.go.
func TestMain(m *testing.M) {
	if s := os.Getenv(specVariable); s != "" {
		os.Exit(beChild(s))
	}
	testenv.Main(m)
}

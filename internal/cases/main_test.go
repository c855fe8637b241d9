package cases_test

import (
	"os"
	"testing"
	"time"

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
	defer os.RemoveAll(built.dir)
	testenv.Main(m)
}

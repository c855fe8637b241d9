package postgres_test

import (
	"os"
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

func TestMain(m *testing.M) {
	if url := os.Getenv("SEMEL_TEST_ZOMBIE"); url != "" {
		beZombie(url)
		return
	}
	testenv.Main(m)
}

package daemon

import (
	"testing"

	"github.com/semelhq/semel/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

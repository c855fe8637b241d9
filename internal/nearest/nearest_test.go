package nearest_test

import (
	"slices"
	"testing"

	"github.com/semelhq/semel/internal/nearest"
)

func TestASlipOfTheHandIsRecognised(t *testing.T) {
	t.Parallel()
	names := []string{"orders", "payments", "id"}
	was := slices.Clone(names)
	for slip, meant := range map[string]string{
		"ordres":   "orders", // swapped
		"order":    "orders", // dropped
		"paymennt": "payments",
		"ORDERS":   "orders",
		"ix":       "id",
		"users":    "",
		"":         "",
	} {
		if got := nearest.Name(slip, names); got != meant {
			t.Errorf("%q: want %q, got %q", slip, meant, got)
		}
	}
	if !slices.Equal(names, was) {
		t.Errorf("the caller's names were put in another order: %q", names)
	}
}

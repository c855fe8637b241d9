package sqlname_test

import (
	"strings"
	"testing"

	"github.com/semelhq/semel/internal/sqlname"
)

func TestTablesAreNamedAsInSQL(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]sqlname.Table{
		"orders":                {Name: "orders"},
		"public.Orders":         {Schema: "public", Name: "orders"},
		`"My.Schema"."Table"`:   {Schema: "My.Schema", Name: "Table"},
		` "a""b" . c$1 `:        {Schema: `a"b`, Name: "c$1"},
		`Żółw.ÓSMY`:             {Schema: "Żółw", Name: "Ósmy"},
		strings.Repeat("x", 63): {Name: strings.Repeat("x", 63)},
		`"order"`:               {Name: "order"},
	} {
		got, err := sqlname.ParseTable(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
			continue
		}
		if again, err := sqlname.ParseTable(got.String()); err != nil || again != got {
			t.Errorf("%s: printed as %s", in, got)
		}
	}
	for _, in := range []string{"", ".", "a.", ".a", "a.b.c", "a b", "a-b", "1a", `"a`, `""`, "a;drop table b", "a\x00", "\"a\x00\"", strings.Repeat("x", 64)} {
		if got, err := sqlname.ParseTable(in); err == nil {
			t.Errorf("%q: %+v", in, got)
		}
	}
}

package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/postgres"
)

// codes are all that PostgreSQL knows of the classes that a statement can meet, by
// what they are to mean.
var codes = map[inbox.Class]string{
	inbox.ClassOutage: `08000 08003 08006 08001 08004 08007 08P01 25006 28000 28P01 53000 53100 53200 53300 53400
		57000 57P01 57P02 57P03 57P04 57P05 58000 58030 58P01 58P02 58P03 42P05`,
	inbox.ClassPoison: `21000 22000 2202E 22021 22008 22012 22005 2200B 22022 22015 2201E 22014 22016 2201F 2201G 22018 22007
		22019 2200D 22025 22P06 22010 22023 22013 2201B 2201W 2201X 2202H 2202G 22009 2200C 2200G 22004 22002 22003 2200H
		22026 22001 22011 22027 22024 2200F 22P01 22P02 22P03 22P04 22P05 2200L 2200M 2200N 2200S 2200T 22030 22031 22032
		22033 22034 22035 22036 22037 22038 22039 2203A 2203B 2203C 2203D 2203E 2203F 2203G 23000 23001 23502 23503 23505
		23514 23P01 40002 44000 54000 54001`,
	inbox.ClassConflict: `40000 40001 40003 40P01 55006 55P03`,
	inbox.ClassSlow:     `57014 25P03 25P04`,
	inbox.ClassRoute: `3F000 42000 42601 42501 42846 42803 42P20 42P19 42830 42602 42622 42939 42804 42P18 42P21 42P22 42809
		428C9 42703 42883 42P01 42P02 42704 42701 42P03 42P04 42723 42P06 42P07 42712 42710 42702 42725 42P08 42P09 42P10
		42611 42P11 42P12 42P13 42P14 42P15 42P16 42P17 54011 54023 55000 55P02 55P04 XX001 XX002`,
	inbox.ClassHandler: `25000 25001 25002 25008 25003 25004 25005 25007 25P01 P0000 P0001 P0002 P0003 P0004 XX000`,
}

// The texts are those of another language, and say something else: they decide
// nothing.
func TestEveryCodeOfTheServerIsJudgedWhateverItsText(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	s, row := lane(t, url)
	raise := func(code, text string) (inbox.Class, error) {
		tx := begin(t, s, span(row, 1))
		defer tx.Rollback(t.Context())
		_, err := tx.DB().Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '%s', MESSAGE = '%s'; END $$`, code, text))
		if err == nil {
			t.Fatalf("%s was not raised", code)
		}
		return tx.Class(err), err
	}
	n := 0
	for want, list := range codes {
		for _, code := range strings.Fields(list) {
			n++
			for _, text := range []string{"Verklemmung festgestellt", "значение слишком длинное", "could not connect to server"} {
				if got, err := raise(code, text); got != want {
					t.Errorf("%s is %s, want %s (%v)", code, got, want, err)
				}
			}
		}
	}
	t.Logf("%d codes", n)
	for _, want := range []inbox.Class{inbox.ClassConflict, inbox.ClassRoute} { // a changed plan is planned anew, once
		if got, _ := raise("0A000", "zwischengespeicherter Plan"); got != want {
			t.Errorf("0A000 is %s, want %s", got, want)
		}
	}
}

func TestForeignKeyWhoseRowComesLaterHasItsAttempts(t *testing.T) {
	t.Parallel()
	url := migrated(t)
	c := connect(t, url)
	exec1(t, c, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id text, parent int REFERENCES parent)`)
	tries := 0
	settleAll(t, url, 5, postgres.InboxConfig{}, func(ctx context.Context, tx pgx.Tx, ms []semel.Message) error {
		for i, m := range ms {
			if string(m.Value) == "2" {
				if tries++; tries == 4 { // what another partition brings meanwhile
					exec1(t, c, "INSERT INTO parent VALUES (1)")
				}
			}
			parent := map[bool]any{true: 1, false: nil}[string(m.Value) == "2"]
			if _, err := tx.Exec(ctx, "INSERT INTO child VALUES ($1, $2)", string(m.Value), parent); err != nil {
				return semel.FailedAt(i, err)
			}
		}
		return nil
	}, 6)
	if n := ask[int](t, c, "SELECT count(DISTINCT id)::int FROM child"); n != 5 || tries < 4 {
		t.Errorf("%d rows after %d tries", n, tries)
	}
	if n := ask[int](t, c, "SELECT count(*)::int FROM semel.dead_letter"); n != 0 {
		t.Errorf("%d buried", n)
	}
}

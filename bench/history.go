package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/postgres"
)

// frozenTables is how many tables the IDs of before lie in.
const frozenTables = 4

// history is a consumer that remembers many random IDs.
type history struct {
	env   *env
	ids   int64
	rings *postgres.Rings
	hot   string
}

const historian = "history"

// known is a stream of which the inbox knows the IDs of every twentieth order.
func (s *stream) known() (ids []pgtype.UUID, fresh *stream) {
	fresh = &stream{name: s.name + ", 5% known", orders: s.orders}
	for i := range s.orders {
		if o := &s.orders[i]; i%20 == 0 {
			ids = append(ids, pgtype.UUID{Bytes: o.id, Valid: true})
		} else {
			fresh.rows++
			fresh.sum += o.amount
		}
	}
	return ids, fresh
}

// remember makes the inbox: its frozen tables are filled without their index, which is
// made afterwards, as nobody wants to wait for the other way.
func (e *env) remember(ctx context.Context, n int64, known []pgtype.UUID) (*history, error) {
	began := time.Now()
	var scope int
	if err := e.pool.QueryRow(ctx, `SELECT semel.register($1)`, historian).Scan(&scope); err != nil {
		return nil, err
	}
	for slot := 1; slot <= frozenTables; slot++ {
		name := fmt.Sprintf("semel.inbox_%d_%d", scope, slot)
		err := e.exec(ctx,
			fmt.Sprintf("ALTER TABLE %[1]s DROP CONSTRAINT inbox_%[2]d_%[3]d_pkey", name, scope, slot),
			fmt.Sprintf("INSERT INTO %s (id) SELECT gen_random_uuid() FROM generate_series(1, %d)", name, n/frozenTables),
		)
		if err == nil && slot == 1 {
			_, err = e.pool.Exec(ctx, fmt.Sprintf("INSERT INTO %s (id) SELECT unnest($1::uuid[])", name), known)
		}
		if err == nil {
			err = e.exec(ctx, fmt.Sprintf("ALTER TABLE %s ADD PRIMARY KEY (id)", name), "VACUUM ANALYZE "+name,
				fmt.Sprintf("UPDATE semel.generation SET state = 'frozen', number = %[2]d, token = gen_random_uuid(), from_time = now(), to_time = now(), ids = %[3]d WHERE scope = %[1]d AND slot = %[2]d", scope, slot, n/frozenTables))
		}
		if err != nil {
			return nil, err
		}
	}
	const hot = frozenTables + 1
	h := &history{env: e, ids: n, hot: fmt.Sprintf("semel.inbox_%d_%d", scope, hot), rings: postgres.NewRings(e.pool, postgres.RingsConfig{})}
	err := e.exec(ctx, fmt.Sprintf("UPDATE semel.generation SET state = 'hot', number = %[2]d, from_time = now() WHERE scope = %[1]d AND slot = %[2]d", scope, hot))
	say("%d IDs are remembered, in %v", n, time.Since(began).Round(time.Second))
	return h, err
}

// settle runs a stream with that memory. Filters that are not there yet are waited for:
// the first round, which isn't counted, has them built.
func (h *history) settle(ctx context.Context, topic string, logs [][]semel.Message) (run, error) {
	err := h.env.exec(ctx, "DELETE FROM semel.watermark WHERE consumer = '"+historian+"'", "TRUNCATE "+h.hot)
	if err != nil {
		return run{}, err
	}
	h.env.rings = h.rings
	defer func() { h.env.rings = nil }()
	r, err := h.env.fromMemory(ctx, separate, historian, topic, logs, 0, nil)
	for began := time.Now(); err == nil && h.rings.Bytes() < 2*h.ids*9/10; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 5*time.Minute {
			return r, fmt.Errorf("the filters of %d IDs are not built: %d bytes", h.ids, h.rings.Bytes())
		}
	}
	return r, err
}

package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// defaultFilterMemory is what the filters of a process may take: 64 million IDs.
const defaultFilterMemory = 128 << 20

// filterRetry is how long a filter that couldn't be built waits.
const filterRetry = 30 * time.Second

// RingsConfig says what a process may keep.
type RingsConfig struct {
	Schema string       // of Semel's tables; "": DefaultSchema
	Memory int64        // bytes of filters at most; 0: 128 MiB; negative: none, the database is asked
	Logger *slog.Logger // nil: slog.Default
}

// Rings is what a process keeps of the inboxes of its consumers: for each frozen table a
// Bloom filter, which says of most IDs, without asking, that the table doesn't hold
// them. A filter belongs to a freezing, which has a random token, so that neither the
// next use of the table nor a database that went back can make it lie. Filters are
// built beside the flow, by a connection of the pool; until then, and beyond the
// memory, the database is asked. Safe for use by many goroutines; share one among the
// lanes of a process.
type Rings struct {
	pool   *pgxpool.Pool
	cfg    RingsConfig
	schema schemaName
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu       sync.RWMutex
	filters  map[[16]byte]*bloom // by the token of the freezing; nil: not built
	lists    map[int32][]generation
	building bool
	rested   time.Time // when building may be tried again

	me      pgtype.UUID // this process, to those who turn rings
	turning map[int32]time.Time
}

// NewRings makes one, with nothing in it.
func NewRings(pool *pgxpool.Pool, cfg RingsConfig) *Rings {
	if cfg.Memory == 0 {
		cfg.Memory = defaultFilterMemory
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	r := &Rings{
		pool: pool, cfg: cfg, schema: nameOf(cfg.Schema),
		filters: map[[16]byte]*bloom{}, lists: map[int32][]generation{}, turning: map[int32]time.Time{},
		me: pgtype.UUID{Valid: true},
	}
	rand.Read(r.me.Bytes[:])
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r
}

// Close ends what is being built.
func (r *Rings) Close() {
	r.cancel()
	r.wait.Wait()
}

// Bytes is the memory that the filters take.
func (r *Rings) Bytes() (n int64) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, f := range r.filters {
		n += f.bytes()
	}
	return n
}

// of answers the filters of frozen tables, nil where there is none, and has those that
// are missing built.
func (r *Rings) of(scope int32, frozen []generation) []*bloom {
	out := make([]*bloom, len(frozen))
	missing := false
	r.mu.RLock()
	for i, g := range frozen {
		out[i] = r.filters[g.token]
		missing = missing || out[i] == nil
	}
	missing = missing && !r.building && !time.Now().Before(r.rested)
	known := slices.Equal(r.lists[scope], frozen)
	r.mu.RUnlock()
	if !known || missing {
		r.build(scope, frozen, missing)
	}
	return out
}

// build notes the list, forgets the filters of tables that are in none, and starts
// to build what is missing.
func (r *Rings) build(scope int32, frozen []generation, missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lists[scope] = slices.Clone(frozen)
	listed := map[[16]byte]bool{}
	for _, list := range r.lists {
		for _, g := range list {
			listed[g.token] = true
		}
	}
	for token := range r.filters {
		if !listed[token] {
			delete(r.filters, token)
		}
	}
	if missing && !r.building && r.ctx.Err() == nil {
		r.building = true
		r.wait.Go(r.buildAll)
	}
}

// next is a table whose filter is missing and fits, the youngest first: repeats are
// mostly of what came lately.
func (r *Rings) next() (scope int32, g generation, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var used int64
	for _, f := range r.filters {
		used += f.bytes()
	}
	for s, list := range r.lists {
		for _, g := range slices.Backward(list) {
			if r.filters[g.token] == nil && used+g.ids*bloomBits/8 <= r.cfg.Memory {
				return s, g, true
			}
		}
	}
	r.building = false
	r.rested = time.Now().Add(filterRetry) // what doesn't fit isn't looked for at every batch
	return 0, generation{}, false
}

func (r *Rings) buildAll() {
	for {
		scope, g, ok := r.next()
		if !ok {
			return
		}
		began := time.Now()
		f, err := r.read(scope, g)
		r.mu.Lock()
		if err != nil {
			r.building, r.rested = false, time.Now().Add(filterRetry)
		} else if f == nil { // it isn't frozen any more: the next batch brings the list
			r.lists[scope] = slices.DeleteFunc(r.lists[scope], func(o generation) bool { return o.token == g.token })
		} else {
			r.filters[g.token] = f
		}
		r.mu.Unlock()
		switch {
		case r.ctx.Err() != nil:
			return
		case err != nil:
			r.cfg.Logger.Warn("a filter of an inbox table could not be built: the database is asked", "scope", scope, "slot", g.slot, "error", err)
			return
		case f != nil:
			r.cfg.Logger.Info("built the filter of an inbox table", "scope", scope, "slot", g.slot, "bytes", f.bytes(), "took", time.Since(began))
		}
	}
}

// read builds a table's filter; nil if its freezing is over. That is looked at after
// the table was read: it may have been emptied meanwhile.
func (r *Rings) read(scope int32, g generation) (*bloom, error) {
	conn, err := r.pool.Acquire(r.ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	// In one transaction, which a pooler can't hand from a server to the one that went back.
	tx, err := conn.BeginTx(r.ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(r.ctx)
	in := idReader{to: newBloom(maphash.MakeSeed(), g.ids)}
	sql := r.schema.sql(fmt.Sprintf("COPY (SELECT id FROM semel.inbox_%d_%d) TO STDOUT BINARY", scope, g.slot))
	if _, err := tx.Conn().PgConn().CopyTo(r.ctx, &in, sql); err != nil {
		return nil, err
	}
	if !in.done {
		return nil, errors.New("the rows of an inbox table came cut off")
	}
	var frozen bool
	err = tx.QueryRow(r.ctx, r.schema.sql(`SELECT EXISTS (SELECT FROM semel.generation WHERE scope = $1 AND slot = $2 AND state = 'frozen' AND token = $3)`),
		scope, g.slot, pgtype.UUID{Bytes: g.token, Valid: true}).Scan(&frozen)
	if err != nil || !frozen {
		return nil, err
	}
	return in.to, nil
}

// idReader takes the rows of COPY in binary form: UUIDs.
type idReader struct {
	to     *bloom
	buf    []byte
	header bool
	done   bool
}

var copyHeader = []byte("PGCOPY\n\xff\r\n\x00")

func (r *idReader) Write(p []byte) (int, error) {
	r.buf = append(r.buf, p...)
	b := r.buf
	if !r.header {
		const fixed = 19 // signature, flags, length of what extends them
		if len(b) < fixed {
			return len(p), nil
		}
		if !bytes.HasPrefix(b, copyHeader) || binary.BigEndian.Uint64(b[11:fixed]) != 0 {
			return 0, errors.New("unknown form of COPY")
		}
		r.header, b = true, b[fixed:]
	}
	const row = 2 + 4 + 16
	for len(b) >= 2 && !r.done {
		if binary.BigEndian.Uint16(b) == 0xffff {
			r.done = true
			break
		}
		if len(b) < row {
			break
		}
		if binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint32(b[2:]) != 16 {
			return 0, errors.New("a row of an inbox table is no UUID")
		}
		r.to.add(b[6:row])
		b = b[row:]
	}
	r.buf = append(r.buf[:0], b...)
	return len(p), nil
}

// elapsed is how much time this process has seen since it was asked last about the
// ring. Each stretch is answered once, whichever lane asks: what becomes of a turn that
// fails isn't counted.
func (r *Rings) elapsed(scope int32) (d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if last, ok := r.turning[scope]; ok {
		d = now.Sub(last)
	}
	r.turning[scope] = now
	return d
}

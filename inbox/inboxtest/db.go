package inboxtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
)

// DB is a database in memory. It may be put back to an earlier [Snapshot].
type DB struct {
	// LockTimeout bounds every wait for a row. Default 200 ms.
	LockTimeout time.Duration

	mu    sync.Mutex
	ended chan struct{} // closed and made anew when a transaction ends
	data  data
	locks map[string]*Tx
	open  map[*Tx]bool
	down  bool
}

// data is what a commit changes and a snapshot keeps.
type data struct {
	identity  string
	consumers map[string]inbox.Record
	paused    map[string]string
	rows      map[string]inbox.Row // by consumer and partition
	ids       map[string]memory    // by consumer and ID
	values    map[string]int64
	letters   []kept
	events    []inbox.Event
}

// kept is a dead letter in its table.
type kept struct {
	inbox.DeadLetter
	consumer string
	number   int64
	state    string
	outcome  inbox.Outcome // how a redrive closed it
}

type memory struct {
	dead   bool
	digest inbox.Digest
}

func (d data) clone() data {
	c := d
	c.consumers, c.paused = maps.Clone(d.consumers), maps.Clone(d.paused)
	c.rows, c.ids, c.values = maps.Clone(d.rows), maps.Clone(d.ids), maps.Clone(d.values)
	c.letters, c.events = slices.Clone(d.letters), slices.Clone(d.events)
	return c
}

// NewDB is an empty database with an identity of its own.
func NewDB() *DB {
	return &DB{
		LockTimeout: 200 * time.Millisecond,
		ended:       make(chan struct{}),
		locks:       make(map[string]*Tx), open: make(map[*Tx]bool),
		data: data{
			identity: rand.Text(), consumers: map[string]inbox.Record{}, paused: map[string]string{},
			rows: map[string]inbox.Row{}, ids: map[string]memory{}, values: map[string]int64{},
		},
	}
}

// Snapshot is the committed state of a DB at one moment.
type Snapshot struct{ data data }

// Snapshot keeps the committed state.
func (db *DB) Snapshot() Snapshot {
	db.mu.Lock()
	defer db.mu.Unlock()
	return Snapshot{db.data.clone()}
}

// Restore puts the database back, as a fail-over to a lagging standby does: what
// was committed since is gone and open transactions are cut.
func (db *DB) Restore(s Snapshot) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for tx := range db.open {
		tx.cut = true
		db.end(tx)
	}
	db.data = s.data.clone()
}

// SetDown makes every statement fail as in an outage, or ends that.
func (db *DB) SetDown(down bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.down = down
	if down {
		for tx := range db.open {
			tx.cut = true
			db.end(tx)
		}
	}
}

// Pause sets a consumer's desired state.
func (db *DB) Pause(consumer, reason string, paused bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if paused {
		db.data.paused[consumer] = reason
	} else {
		delete(db.data.paused, consumer)
	}
}

// Values is the committed state of what handlers wrote.
func (db *DB) Values() map[string]int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return maps.Clone(db.data.values)
}

// Letters are the committed dead letters.
func (db *DB) Letters() []inbox.DeadLetter {
	db.mu.Lock()
	defer db.mu.Unlock()
	out := make([]inbox.DeadLetter, len(db.data.letters))
	for i, k := range db.data.letters {
		out[i] = k.DeadLetter
	}
	return out
}

// Mark marks the buried letters to be handled again.
func (db *DB) Mark() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.data.letters = slices.Clone(db.data.letters)
	for i := range db.data.letters {
		if k := &db.data.letters[i]; k.state == "buried" {
			k.state = "redrive"
		}
	}
}

// LetterStates are the states of the committed dead letters: buried, redrive, or
// redriven and what it came to.
func (db *DB) LetterStates() []string {
	db.mu.Lock()
	defer db.mu.Unlock()
	var out []string
	for _, k := range db.data.letters {
		state := k.state
		if state == "redriven" {
			state += " " + k.outcome.String()
		}
		out = append(out, state)
	}
	return out
}

// Events are what was recorded.
func (db *DB) Events() []inbox.Event {
	db.mu.Lock()
	defer db.mu.Unlock()
	return slices.Clone(db.data.events)
}

// Rows are the committed rows of a consumer, in order of topic and partition.
func (db *DB) Rows(consumer string) []inbox.Row {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.data.rowsOf(consumer, nil)
}

func (d *data) rowsOf(consumer string, want func(semel.Partition) bool) []inbox.Row {
	var out []inbox.Row
	for k, r := range d.rows {
		if k == rowKey(consumer, r.Partition) && (want == nil || want(r.Partition)) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b inbox.Row) int { return a.Compare(b.Partition) })
	return out
}

func rowKey(consumer string, p semel.Partition) string { return consumer + "\x00" + p.String() }
func idKey(consumer string, id semel.ID) string        { return consumer + "\x00" + id.String() }

// ErrDown is what an outage looks like.
var ErrDown = errors.New("the database is down")

// ErrLockTimeout is the end of a wait for a row.
var ErrLockTimeout = errors.New("lock timeout")

// ErrRefused is data that the database refuses for good; see [Tx.Refuse].
var ErrRefused = errors.New("the database refuses this value")

// ErrAborted is every statement's answer after one has failed.
var ErrAborted = errors.New("the transaction is aborted")

// Store is a lane's connection to a DB.
type Store struct {
	db       *DB
	consumer string
}

// NewStore opens a connection.
func (db *DB) NewStore() *Store { return &Store{db: db} }

var _ inbox.Store[*Tx] = (*Store)(nil)

// Open is [inbox.Store]'s.
func (s *Store) Open(_ context.Context, r inbox.Record) (inbox.Registration, error) {
	db := s.db
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.down {
		return inbox.Registration{}, ErrDown
	}
	s.consumer = r.Name
	if old, ok := db.data.consumers[r.Name]; ok && !r.AcceptChange {
		var changes []inbox.Change
		compare := func(field, was, is string) {
			if was != is {
				changes = append(changes, inbox.Change{Field: field, Recorded: was, Now: is})
			}
		}
		compare("cluster", old.Cluster, r.Cluster)
		compare("topics", fmt.Sprint(old.Topics), fmt.Sprint(r.Topics))
		compare("id", old.IDRule, r.IDRule)
		compare("target", old.Target, r.Target)
		if len(changes) > 0 {
			return inbox.Registration{}, &inbox.ChangedError{Consumer: r.Name, Changes: changes}
		}
	}
	db.data.consumers[r.Name] = r
	reason, paused := db.data.paused[r.Name]
	return inbox.Registration{Database: db.data.identity, Scope: 1, Paused: paused, Reason: reason}, nil
}

// Introduce is [inbox.Store]'s.
func (s *Store) Introduce(ctx context.Context, topic string, decide func([]inbox.Row) ([]inbox.Row, []inbox.Event, error)) ([]inbox.Row, error) {
	tx, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	if err := tx.lock(ctx, "introduce "+s.consumer+" "+topic); err != nil {
		return nil, err
	}
	of := func(p semel.Partition) bool { return p.Topic == topic }
	s.db.mu.Lock()
	known := s.db.data.rowsOf(s.consumer, of)
	s.db.mu.Unlock()
	added, events, err := decide(known)
	if err != nil {
		return nil, err
	}
	return append(known, added...), tx.end(func(d *data) {
		for _, r := range added {
			d.rows[rowKey(s.consumer, r.Partition)] = r
		}
		d.events = append(d.events, events...)
	})
}

// Claim is [inbox.Store]'s. An older claim's transaction that holds the row is
// cut at once.
func (s *Store) Claim(ctx context.Context, p semel.Partition, owner inbox.Owner, decide func(inbox.Row) (inbox.Row, []inbox.Event, error)) (inbox.Row, error) {
	tx, err := s.begin()
	if err != nil {
		return inbox.Row{}, err
	}
	defer tx.Rollback(ctx)
	key := rowKey(s.consumer, p)
	if err := tx.lock(ctx, key); err != nil {
		if !errors.Is(err, ErrLockTimeout) {
			return inbox.Row{}, err
		}
		s.db.mu.Lock()
		if holder := s.db.locks[key]; holder != nil && holder.settles {
			holder.cut = true
			s.db.end(holder)
		}
		s.db.mu.Unlock()
		tx.failed = false
		if err := tx.lock(ctx, key); err != nil {
			return inbox.Row{}, err
		}
	}
	s.db.mu.Lock()
	row, ok := s.db.data.rows[key]
	s.db.mu.Unlock()
	if !ok {
		return inbox.Row{}, inbox.ErrNoRow
	}
	row, events, err := decide(row)
	if err != nil {
		return inbox.Row{}, err
	}
	row.Generation++
	_, _ = rand.Read(row.Token[:])
	row.Owner = &owner
	return row, tx.end(func(d *data) {
		d.rows[key] = row
		d.events = append(d.events, events...)
	})
}

// Look is [inbox.Store]'s.
func (s *Store) Look(_ context.Context, ps []semel.Partition) (inbox.Look, error) {
	db := s.db
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.down {
		return inbox.Look{}, ErrDown
	}
	want := func(p semel.Partition) bool { return ps == nil || slices.Contains(ps, p) }
	reason, paused := db.data.paused[s.consumer]
	marked := slices.ContainsFunc(db.data.letters, func(k kept) bool { return k.consumer == s.consumer && k.state == "redrive" })
	return inbox.Look{Rows: db.data.rowsOf(s.consumer, want), Paused: paused, Reason: reason, Marked: marked}, nil
}

// Redrive is [inbox.Store]'s.
func (s *Store) Redrive(ctx context.Context, ps []semel.Partition, after int64) (inbox.Redrive[*Tx], error) {
	tx, err := s.begin()
	if err != nil {
		return nil, err
	}
	tx.settles = true
	db := s.db
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, k := range db.data.letters {
		p := k.Message.Position().Log
		row, ok := db.data.rows[rowKey(s.consumer, p)]
		mine := ps == nil || slices.Contains(ps, p) || !ok || row.Owner == nil
		lock := fmt.Sprint("letter ", k.number)
		if k.consumer != s.consumer || k.state != "redrive" || k.number <= after || !mine || db.locks[lock] != nil {
			continue
		}
		db.locks[lock] = tx
		if ok {
			db.mu.Unlock()
			err := tx.lock(ctx, rowKey(s.consumer, p))
			db.mu.Lock()
			if err != nil {
				db.end(tx)
				return nil, err
			}
		}
		if k.Class == inbox.DeadCrash {
			db.data.letter(k.number, func(k *kept) { k.state = "buried"; k.Attempts++ })
		}
		return &redrive{tx, inbox.Letter{Number: k.number, DeadLetter: k.DeadLetter}}, nil
	}
	db.end(tx)
	return nil, nil
}

// Rebury is [inbox.Store]'s.
func (s *Store) Rebury(ctx context.Context, number int64, why inbox.DeadLetter) error {
	tx, err := s.begin()
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if err := tx.lock(ctx, fmt.Sprint("letter ", number)); err != nil {
		return err
	}
	return tx.end(func(d *data) {
		d.letter(number, func(k *kept) {
			k.Class, k.SQLState, k.Error = why.Class, why.SQLState, why.Error
			k.Attempts++
			k.state = "buried"
		})
	})
}

// letter changes a letter that is open.
func (d *data) letter(number int64, change func(*kept)) {
	d.letters = slices.Clone(d.letters)
	for i := range d.letters {
		if k := &d.letters[i]; k.number == number && (k.state == "redrive" || k.state == "buried") {
			change(k)
		}
	}
}

// redrive is [inbox.Redrive].
type redrive struct {
	*Tx
	letter inbox.Letter
}

func (r *redrive) Letter() inbox.Letter { return r.letter }

// Readmit is [inbox.Redrive]'s.
func (r *redrive) Readmit(ctx context.Context, a inbox.Admission) (inbox.Verdict, error) {
	key := idKey(r.store.consumer, a.ID)
	if err := r.lock(ctx, "id "+key); err != nil {
		return 0, err
	}
	r.db.mu.Lock()
	known, ok := r.db.data.ids[key]
	r.db.mu.Unlock()
	if ok && !known.dead {
		return inbox.Duplicate, nil
	}
	r.ids[key] = memory{digest: a.Digest}
	return inbox.Fresh, nil
}

// Close is [inbox.Redrive]'s.
func (r *redrive) Close(ctx context.Context, how inbox.Outcome) error {
	return r.commit(func(d *data) {
		d.letter(r.letter.Number, func(k *kept) { k.state, k.outcome = "redriven", how })
		key := rowKey(r.store.consumer, r.letter.Message.Position().Log)
		if row, ok := d.rows[key]; ok && how == inbox.Applied {
			row.Accounts.Redriven++
			d.rows[key] = row
		}
	})
}

// Release is [inbox.Store]'s.
func (s *Store) Release(_ context.Context, claims []inbox.Claim) error {
	db := s.db
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.down {
		return ErrDown
	}
	for _, c := range claims {
		key := rowKey(s.consumer, c.Partition)
		if r, ok := db.data.rows[key]; ok && r.Token == c.Token {
			r.Owner, r.UncleanClaims, r.Trial = nil, 0, nil
			db.data.rows[key] = r
		}
	}
	return nil
}

// Try is [inbox.Store]'s.
func (s *Store) Try(ctx context.Context, c inbox.Claim, t inbox.Trial) error {
	return s.change(c.Partition, func(r *inbox.Row) {
		if r.Token == c.Token {
			r.Trial = &t
		}
	})
}

// Survived is [inbox.Store]'s.
func (s *Store) Survived(ctx context.Context, p semel.Partition, at int64) error {
	return s.change(p, func(r *inbox.Row) {
		if r.Trial != nil && r.Trial.At == at {
			r.Trial = nil
		}
	})
}

func (s *Store) change(p semel.Partition, f func(*inbox.Row)) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.down {
		return ErrDown
	}
	key := rowKey(s.consumer, p)
	if r, ok := s.db.data.rows[key]; ok {
		f(&r)
		s.db.data.rows[key] = r
	}
	return nil
}

// Record is [inbox.Store]'s.
func (s *Store) Record(_ context.Context, events []inbox.Event) error {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.down {
		return ErrDown
	}
	s.db.data.events = append(s.db.data.events, events...)
	return nil
}

// Forget is [inbox.Store]'s: this one forgets nothing.
func (s *Store) Forget(context.Context, time.Time) (bool, error) { return false, nil }

// Class is [inbox.Store]'s.
func (s *Store) Class(err error) inbox.Class {
	var fenced *inbox.FencedError
	switch {
	case errors.As(err, &fenced):
		return inbox.ClassFenced
	case errors.Is(err, ErrDown):
		return inbox.ClassOutage
	case errors.Is(err, ErrLockTimeout):
		return inbox.ClassConflict
	case errors.Is(err, ErrRefused):
		return inbox.ClassPoison
	case errors.Is(err, errUnanswered):
		return inbox.ClassAmbiguous
	}
	return inbox.ClassHandler
}

// Close is [inbox.Store]'s.
func (s *Store) Close() {}

// Begin is [inbox.Store]'s.
func (s *Store) Begin(ctx context.Context, spans []inbox.Span) (inbox.Tx[*Tx], error) {
	tx, err := s.begin()
	if err != nil {
		return nil, err
	}
	tx.settles = true
	if err := tx.fence(ctx, spans); err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

func (s *Store) begin() (*Tx, error) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	if s.db.down {
		return nil, ErrDown
	}
	tx := &Tx{db: s.db, store: s, values: map[string]int64{}, ids: map[string]memory{}}
	s.db.open[tx] = true
	return tx, nil
}

// Tx is one transaction. Handlers under test write with it.
type Tx struct {
	db      *DB
	store   *Store
	settles bool
	values  map[string]int64 // what Add will add
	ids     map[string]memory
	letters []inbox.DeadLetter
	failed  bool     // a statement has failed
	late    bool     // COMMIT will be refused
	undo    []func() // what takes changes back, with mu held
	probing bool
	probed  int  // changes before the first probe
	cut     bool // the connection is gone
	over    bool
}

var (
	_ inbox.Tx[*Tx]      = (*Tx)(nil)
	_ inbox.Chainer[*Tx] = (*Tx)(nil)
	_ inbox.Prober       = (*Tx)(nil)
)

// lock waits for a row. The caller must not hold mu.
func (tx *Tx) lock(ctx context.Context, key string) error {
	db := tx.db
	timeout := time.NewTimer(db.LockTimeout)
	defer timeout.Stop()
	for {
		db.mu.Lock()
		if err := tx.usable(); err != nil {
			db.mu.Unlock()
			return err
		}
		holder := db.locks[key]
		if holder == nil {
			db.locks[key] = tx
			tx.undo = append(tx.undo, func() { delete(db.locks, key) })
		}
		if holder == nil || holder == tx {
			db.mu.Unlock()
			return nil
		}
		ended := db.ended
		db.mu.Unlock()
		select {
		case <-ended:
		case <-timeout.C:
			tx.failed = true
			return fmt.Errorf("%s: %w", key, ErrLockTimeout)
		case <-ctx.Done():
			tx.failed = true
			return ctx.Err()
		}
	}
}

// usable is asked with mu held.
func (tx *Tx) usable() error {
	switch {
	case tx.db.down, tx.cut:
		return ErrDown
	case tx.over:
		return errors.New("the transaction is over")
	case tx.failed:
		return ErrAborted
	}
	return nil
}

// end gives locks back, with mu held.
func (db *DB) end(tx *Tx) {
	tx.over = true
	delete(db.open, tx)
	for k, holder := range db.locks {
		if holder == tx {
			delete(db.locks, k)
		}
	}
	close(db.ended)
	db.ended = make(chan struct{})
}

// end commits what apply does to the data.
func (tx *Tx) end(apply func(*data)) error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if err := tx.usable(); err != nil {
		return err
	}
	apply(&tx.db.data)
	tx.db.end(tx)
	return nil
}

func (tx *Tx) fence(ctx context.Context, spans []inbox.Span) error {
	sorted := slices.Clone(spans)
	slices.SortFunc(sorted, func(a, b inbox.Span) int { return a.Compare(b.Partition) })
	var e inbox.FencedError
	for _, sp := range sorted {
		key := rowKey(tx.store.consumer, sp.Partition)
		if err := tx.lock(ctx, key); err != nil {
			return err
		}
		tx.db.mu.Lock()
		r, ok := tx.db.data.rows[key]
		tx.db.mu.Unlock()
		m := inbox.Mismatch{Partition: sp.Partition, From: sp.From}
		if ok {
			m.Row = &r
			m.Mine = r.Token == sp.Token
		}
		if !ok || !m.Mine || r.TopicID != sp.TopicID || r.Next != sp.From {
			e.Mismatches = append(e.Mismatches, m)
		}
	}
	if len(e.Mismatches) > 0 {
		return &e
	}
	return nil
}

// DB is [inbox.Tx]'s: handlers write with the transaction itself.
func (tx *Tx) DB() *Tx { return tx }

// Add adds to a number under a key, whose row it locks.
func (tx *Tx) Add(ctx context.Context, key string, n int64) error {
	if err := tx.lock(ctx, "value "+key); err != nil {
		return err
	}
	change(tx, tx.values, key, tx.values[key]+n)
	return nil
}

// Refuse is a statement that the database refuses for good: later ones fail too.
func (tx *Tx) Refuse() error {
	tx.failed = true
	return ErrRefused
}

// RefuseLate is a statement that the database refuses at COMMIT.
func (tx *Tx) RefuseLate() {
	was := tx.late
	tx.late = true
	tx.undo = append(tx.undo, func() { tx.late = was })
}

// change sets an entry of the transaction's own, so that it can be taken back; with
// mu held.
func change[V any](tx *Tx, m map[string]V, key string, to V) {
	was, there := m[key]
	m[key] = to
	tx.undo = append(tx.undo, func() {
		if m[key] = was; !there {
			delete(m, key)
		}
	})
}

// rollBackTo takes back all but the first so many changes, locks among them.
func (tx *Tx) rollBackTo(savepoint int) error {
	db := tx.db
	db.mu.Lock()
	defer db.mu.Unlock()
	tx.failed = false
	if err := tx.usable(); err != nil {
		return err
	}
	for len(tx.undo) > savepoint {
		last := len(tx.undo) - 1
		tx.undo[last]()
		tx.undo = tx.undo[:last]
	}
	close(db.ended)
	db.ended = make(chan struct{})
	return nil
}

// Probe is [inbox.Prober]'s.
func (tx *Tx) Probe(_ context.Context, f func() error) error {
	tx.db.mu.Lock()
	savepoint, err := len(tx.undo), tx.usable()
	tx.db.mu.Unlock()
	if err != nil {
		return err
	}
	if !tx.probing {
		tx.probing, tx.probed = true, savepoint
	}
	err = f()
	if err == nil && tx.late {
		err = ErrRefused
	}
	if err == nil {
		return nil
	}
	return cmp.Or(tx.rollBackTo(savepoint), err)
}

// TakeBack is [inbox.Prober]'s.
func (tx *Tx) TakeBack(context.Context) error {
	if !tx.probing {
		return nil
	}
	tx.probing = false
	return tx.rollBackTo(tx.probed)
}

// Admit is [inbox.Tx]'s. IDs are locked in their order, so that two
// transactions with the same IDs can't wait for each other.
func (tx *Tx) Admit(ctx context.Context, as []inbox.Admission) ([]inbox.Verdict, error) {
	order := make([]int, len(as))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return bytes.Compare(as[a].ID[:], as[b].ID[:]) })
	out := make([]inbox.Verdict, len(as))
	for _, i := range order {
		a := as[i]
		key := idKey(tx.store.consumer, a.ID)
		tx.db.mu.Lock()
		known, ok := tx.db.data.ids[key]
		tx.db.mu.Unlock()
		if !ok {
			// the unique index makes a second inserter wait for the first
			if err := tx.lock(ctx, "id "+key); err != nil {
				return nil, err
			}
			tx.db.mu.Lock()
			known, ok = tx.db.data.ids[key]
			tx.db.mu.Unlock()
		}
		switch {
		case !ok:
			change(tx, tx.ids, key, memory{dead: a.Dead, digest: a.Digest})
		case a.Digest != known.digest && a.Digest != (inbox.Digest{}) && known.digest != (inbox.Digest{}):
			out[i] = inbox.Collision
		default:
			out[i] = inbox.Duplicate
		}
	}
	return out, nil
}

// Bury is [inbox.Tx]'s.
func (tx *Tx) Bury(_ context.Context, letters []inbox.DeadLetter) error {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if err := tx.usable(); err != nil {
		return err
	}
	for _, l := range letters {
		l.Message.Key, l.Message.Value = bytes.Clone(l.Message.Key), bytes.Clone(l.Message.Value)
		tx.letters = append(tx.letters, l)
		if m, ok := tx.ids[idKey(tx.store.consumer, l.ID)]; ok && l.Class != inbox.DeadCollision {
			m.dead = true
			tx.ids[idKey(tx.store.consumer, l.ID)] = m
		}
	}
	return nil
}

// Failed is [inbox.Tx]'s.
func (tx *Tx) Failed() bool { return tx.failed }

// Commit is [inbox.Tx]'s.
func (tx *Tx) Commit(_ context.Context, settled []inbox.Settled) error {
	return tx.commit(func(d *data) {
		for _, s := range settled {
			key := rowKey(tx.store.consumer, s.Partition)
			r := d.rows[key]
			r.Next, r.UncleanClaims, r.Ahead = s.To, 0, s.Ahead
			r.Accounts = r.Accounts.Plus(s.Accounts)
			r.Epochs = appendEpochs(r.Epochs, s.Epochs)
			if !s.Newest.IsZero() {
				r.RecordTime = s.Newest
			}
			d.rows[key] = r
		}
	})
}

// commit commits the transaction's own, and what more does.
func (tx *Tx) commit(more func(*data)) error {
	if tx.late {
		tx.Rollback(context.Background())
		return ErrRefused
	}
	return tx.end(func(d *data) {
		more(d)
		for k, n := range tx.values {
			d.values[k] += n
		}
		maps.Copy(d.ids, tx.ids)
		for _, l := range tx.letters {
			d.letters = append(d.letters, kept{DeadLetter: l, consumer: tx.store.consumer, number: int64(len(d.letters)) + 1, state: "buried"})
		}
	})
}

// CommitAndBegin is [inbox.Chainer]'s.
func (tx *Tx) CommitAndBegin(ctx context.Context, settled []inbox.Settled, next []inbox.Span) (inbox.Tx[*Tx], error) {
	if err := tx.Commit(ctx, settled); err != nil || len(next) == 0 {
		return nil, err
	}
	then, err := tx.store.Begin(ctx, next)
	if err != nil {
		return nil, nil
	}
	return then, nil
}

func appendEpochs(have, more []inbox.Epoch) []inbox.Epoch {
	out := slices.Clone(have)
	for _, e := range more {
		if n := len(out); n == 0 || out[n-1].Number < e.Number {
			out = append(out, e)
		}
	}
	return out
}

// Rollback is [inbox.Tx]'s.
func (tx *Tx) Rollback(context.Context) {
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	if !tx.over {
		tx.db.end(tx)
	}
}

// Class is [inbox.Tx]'s.
func (tx *Tx) Class(err error) inbox.Class {
	tx.db.mu.Lock()
	cut := tx.cut
	tx.db.mu.Unlock()
	if cut {
		return inbox.ClassOutage
	}
	return tx.store.Class(err)
}

// Describe is [inbox.Tx]'s.
func (tx *Tx) Describe(err error) (sqlstate, text string) {
	if errors.Is(err, ErrRefused) {
		return "23514", err.Error()
	}
	return "", err.Error()
}

// errUnanswered is a COMMIT whose answer was lost; faults answer with it.
var errUnanswered = errors.New("COMMIT was sent and not answered")

// ErrUnanswered is a COMMIT whose answer was lost: for wrappers that make this
// fault.
func ErrUnanswered() error { return errUnanswered }

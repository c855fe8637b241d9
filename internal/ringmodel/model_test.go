//go:build !race

package ringmodel_test

import (
	"hash/maphash"
	"slices"
)

// The size of the model.
const (
	tables  = 3
	ids     = 2
	workers = 4
)

// how is a row of an inbox table.
type how uint8

const (
	none how = iota
	applied
	dead
)

// What a table is in the list.
const (
	unlisted uint8 = iota
	hot
	frozen
)

type entry struct{ state, number, token uint8 }

// list is the ring: what a version names.
type list struct {
	version uint8
	of      [tables]entry
}

// nth is a table of that state, the oldest first; -1: there are no more.
func (l *list) nth(state uint8, n int) int {
	for number := uint8(1); number < 20; number++ {
		for t, e := range l.of {
			if e.state == state && e.number == number {
				if n == 0 {
					return t
				}
				n--
			}
		}
	}
	return -1
}

// What is true of an ID, whoever remembers it.
const (
	ever     uint8 = 1 << iota // it was admitted
	inside                     // the window it was admitted in has not ended
	effected                   // and its effect was made
)

// Dead letters.
const (
	noLetter uint8 = iota
	living
	closed
)

// db is what is committed.
type db struct {
	list
	rows   [tables][ids]how
	letter [ids]uint8
	truth  [ids]uint8
	done   [workers]uint8 // batches: the watermark
}

type filter struct{ key, has uint8 } // key: the token, 0: none

// worker is a process with a transaction at most: batches, or redrive.
type worker struct {
	pc      uint8
	known   uint8 // version, as read last
	held    uint8 // locks of versions, a bit each
	got     uint8
	list    list
	fresh   uint8 // IDs that are thought fresh, a bit each
	table   uint8 // the next one to ask, or to insert into
	at      uint8 // the next ID to insert
	pend    [tables][ids]how
	touched uint8 // tables that the transaction has locked by using them
	letter  uint8 // that is locked, plus one
	undone  uint8 // ROLLBACK TO was done
	filters [2]filter
	build   filter // what is being built: 0: nothing
	slot    uint8  // of that
}

const (
	idle uint8 = iota
	hold
	snapped // lock and list in one statement: between snapshot and lock
	look
	ask
	insert
	finish
)

// rotator turns the ring.
type rotator struct {
	pc      uint8
	version uint8
	tests   uint8 // the version whose lock is held; 0: none
	act     uint8
	slot    uint8 // that is frozen, dropped, emptied, or becomes hot
	into    uint8 // hot one, into which IDs are carried
	locked  uint8 // letters, a bit each
	left    uint8 // IDs to carry, a bit each
	pend    [ids]how
}

const (
	rotIdle uint8 = iota
	rotRow
	rotTested
	rotLetters
	rotCarry
	rotCommit
)

const (
	actBoth uint8 = iota + 1
	actFreeze
	actDrop
	actEmpty
)

type state struct {
	db      db
	back    db    // an earlier one
	went    uint8 // 0: back is empty, 1: back is there, 2: the database went back to it
	tokens  uint8 // given out
	crashes uint8 // to come
	snap    db    // of the caller under REPEATABLE READ
	w       [workers]worker
	r       [2]rotator
}

// rule is one that the model can do without, to be found out.
type rule string

const (
	testAtFreezing   rule = "the older version is tested at freezing"
	testAtBoth       rule = "the older version is tested before two are hot"
	testAtTruncation rule = "the older version is tested at truncation"
	testAtDrop       rule = "the older version is tested at dropping"
	testLater        rule = "the test comes after both is visible"
	statements       rule = "the list is read in a statement after the lock"
	tryLock          rule = "a batch tries the lock and never waits"
	lockHeld         rule = "a list is worked by only under its lock"
	both             rule = "two tables are hot for a time"
	everyTable       rule = "fresh is what went into every hot table"
	rowLock          rule = "the ring's row is locked"
	askFirst         rule = "frozen tables are asked before anything is inserted"
	sorted           rule = "IDs go in by their order"
	yesAsked         rule = "a filter's yes is asked"
	byToken          rule = "a filter belongs to a freezing"
	lookAgain        rule = "a filter is kept if its freezing still stands"
	oneTransaction   rule = "a filter is read and looked at in one transaction"
	readContent      rule = "the list that was read counts, not that of a version seen before"
	readCommitted    rule = "older snapshots are refused"
	carry            rule = "IDs of living letters are carried"
	letterLock       rule = "letters are locked while their IDs are carried"
	letterMissed     rule = "a table stays while a letter of its IDs is locked"
	relock           rule = "the lock is taken anew after ROLLBACK TO"
	loserDead        rule = "what went into the older hot table alone counts as not applied"
)

// scope is how far is looked.
type scope struct {
	name       string
	batches    []int   // of each worker
	demand     [][]int // IDs of each worker's batches, in the order they came; nil: the first ID
	redrive    bool    // one more worker, which handles dead letters again; batches may bury
	rotators   int
	versions   uint8 // the last one
	crashes    uint8
	filters    bool
	back       bool
	pooler     bool // hides that the database went back from who is between two transactions
	repeatable bool // the first worker is under REPEATABLE READ
	savepoints bool
	without    []rule
	seek       string // the only failure that counts; "": any
}

// step is what somebody did.
type step struct {
	who  string
	what string
	n    int
}

type model struct {
	scope
	off    map[rule]bool
	sort   bool // workers that do the same are exchangeable
	out    func(step, *state)
	failed func(step, *state, string)
}

func newModel(sc scope) *model {
	m := &model{scope: sc, off: map[rule]bool{}, sort: !sc.repeatable && sc.demand == nil}
	for _, r := range sc.without {
		m.off[r] = true
	}
	return m
}

func (m *model) on(r rule) bool { return !m.off[r] }

func (m *model) first() state {
	s := state{crashes: m.crashes}
	s.db.version = 1
	s.db.of[0] = entry{state: hot, number: 1}
	return s
}

// redriver is the place of the worker that handles letters again; -1: none.
func (m *model) redriver() int {
	if m.redrive {
		return len(m.batches)
	}
	return -1
}

func (m *model) all() int {
	if m.redrive {
		return len(m.batches) + 1
	}
	return len(m.batches)
}

func (m *model) demanded(i int) []int {
	if m.demand == nil {
		return []int{0}
	}
	d := m.demand[i]
	if m.on(sorted) {
		d = slices.Sorted(slices.Values(d))
	}
	return d
}

// finished says whether all is done and nothing open.
func (m *model) finished(s *state) bool {
	for i := range m.all() {
		if s.w[i].pc != idle || i < len(m.batches) && int(s.db.done[i]) < m.batches[i] {
			return false
		}
	}
	return s.r[0].pc == rotIdle && s.r[1].pc == rotIdle
}

// next gives every state that can follow.
func (m *model) next(s *state) {
	for i := range m.all() {
		m.work(s, i)
		if m.filters {
			m.buildFilter(s, i)
		}
	}
	for i := range m.rotators {
		m.rotate(s, i)
	}
	m.crash(s)
	if m.back {
		m.goBack(s)
	}
}

var names = [...]string{"worker 1", "worker 2", "worker 3", "worker 4"}

var rotators = [...]string{"rotator 1", "rotator 2"}

func (m *model) emit(s *state, who, what string, n int) { m.out(step{who, what, n}, s) }

// holder says who has a row that isn't committed: a worker, workers and more for a
// rotator, -1 for nobody.
func (s *state) holder(t, id, but int) int {
	for i := range s.w {
		if i != but && s.w[i].pend[t][id] != none {
			return i
		}
	}
	for i := range s.r {
		if r := &s.r[i]; workers+i != but && int(r.into) == t && r.pend[id] != none {
			return workers + i
		}
	}
	return -1
}

// exclusive says whether somebody else has locked the version for himself.
func (s *state) exclusive(version uint8) bool {
	return version != 0 && (s.r[0].tests == version || s.r[1].tests == version)
}

// shared says whether a worker holds the version.
func (s *state) shared(version uint8) bool {
	for i := range s.w {
		if s.w[i].held>>version&1 != 0 {
			return true
		}
	}
	return false
}

// emptying says whether a table is locked to be truncated.
func (s *state) emptying(t int) bool {
	for i := range s.r {
		if s.r[i].pc == rotCommit && s.r[i].act == actEmpty && int(s.r[i].slot) == t {
			return true
		}
	}
	return false
}

// end ends a worker's transaction; what the process keeps in memory stays.
func (m *model) end(w *worker) {
	e := worker{known: w.known, filters: w.filters, build: w.build, slot: w.slot}
	if m.filters || m.off[readContent] {
		e.list = w.list
	}
	*w = e
}

// work is a worker's next statement.
func (m *model) work(s *state, i int) {
	n := *s
	w, name := &n.w[i], names[i]
	again := i == m.redriver()
	old := m.repeatable && i == 0
	seen := &s.db // by the statement's snapshot
	if old && s.w[i].pc != idle {
		seen = &s.snap
	}
	switch s.w[i].pc {
	case idle:
		if again {
			for id := range ids {
				if s.db.letter[id] == living && !s.letterLocked(id) {
					n := *s
					w := &n.w[i]
					w.pc, w.letter, w.fresh = hold, uint8(id+1), 1<<id
					m.emit(&n, name, "locks the letter of ID", id)
				}
			}
			return
		}
		if int(s.db.done[i]) >= m.batches[i] {
			return
		}
		w.pc = hold
		for _, id := range m.demanded(i) {
			w.fresh |= 1 << id
		}
		if old {
			if m.on(readCommitted) {
				n = *s
				n.db.done[i]++ // refused
				m.emit(&n, name, "is refused", 0)
				return
			}
			n.snap = s.db
			m.emit(&n, name, "begins under REPEATABLE READ", 0)
			return
		}
		if !m.on(statements) {
			m.emit(&n, name, "begins", 0)
			return
		}
		m.hold(&n, i)
	case hold:
		if !m.on(statements) {
			w.list, w.pc = seen.list, snapped
			m.emit(&n, name, "takes a snapshot of version", int(w.list.version))
			return
		}
		m.hold(&n, i)
	case snapped:
		m.take(s, w)
		m.looked(&n, i)
	case look:
		was := w.list
		w.list = seen.list
		if m.off[readContent] && was.version == w.list.version {
			w.list = was
		}
		m.looked(&n, i)
	case ask:
		m.ask(s, &n, i, seen)
	case insert:
		m.insert(s, &n, i, seen)
	case finish:
		m.commit(s, i)
	}
}

// hold tries the lock of the version that is known.
func (m *model) hold(n *state, i int) {
	w := &n.w[i]
	if !m.on(tryLock) && n.exclusive(w.known) {
		m.failed(step{names[i], "waits for the lock of version", int(w.known)}, n, "a batch waits for a rotator")
		return
	}
	m.take(n, w)
	w.pc = look
	if w.got != 0 {
		m.emit(n, names[i], "holds version", int(w.known))
		return
	}
	if w.known == n.db.version {
		m.failed(step{names[i], "reads again and again version", int(w.known)}, n, "a batch waits for a rotator")
		return
	}
	m.emit(n, names[i], "can't hold version", int(w.known))
}

func (m *model) take(s *state, w *worker) {
	w.got = 0
	if !s.exclusive(w.known) {
		w.got = 1
		w.held |= 1 << w.known
	}
}

// looked says whether the list that was read is the one whose lock is held.
func (m *model) looked(n *state, i int) {
	w := &n.w[i]
	settled := w.got != 0 && w.list.version == w.known
	if !settled && m.on(lockHeld) {
		w.known, w.got, w.pc = w.list.version, 0, hold
		m.emit(n, names[i], "reads another version:", int(w.list.version))
		return
	}
	w.known = w.list.version
	w.got, w.table, w.at, w.pc = 1, 0, 0, ask
	if m.off[askFirst] {
		w.pc = insert
	}
	m.pass(w, i)
	m.emit(n, names[i], "works by version", int(w.list.version))
}

// pass goes on where there is nothing to ask, or to insert into.
func (m *model) pass(w *worker, i int) {
	first, second := ask, insert
	if m.off[askFirst] {
		first, second = insert, ask
	}
	for {
		switch {
		case w.pc == ask && w.list.nth(frozen, int(w.table)) < 0, w.pc == insert && w.list.nth(hot, int(w.table)) < 0, w.fresh == 0:
			if w.pc == first && w.fresh != 0 {
				w.pc, w.table, w.at = second, 0, 0
				continue
			}
			w.pc, w.table, w.at = finish, 0, 0
			return
		}
		return
	}
}

// known is an answer; it is true if somebody committed the ID.
func (m *model) known(s, n *state, i, id int) bool {
	w := &n.w[i]
	w.fresh &^= 1 << id
	if s.db.truth[id]&ever == 0 {
		m.failed(step{names[i], "is told known: ID", id}, n, "an ID that nobody committed is known")
		return false
	}
	return true
}

// uses locks a table; who would wait for a rotator fails.
func (m *model) uses(s, n *state, i, t int) bool {
	if s.emptying(t) {
		m.failed(step{names[i], "waits for the table that is emptied:", t}, n, "a batch waits for a rotator")
		return false
	}
	n.w[i].touched |= 1 << t
	return true
}

// ask asks the next frozen table.
func (m *model) ask(s, n *state, i int, seen *db) {
	w := &n.w[i]
	t := w.list.nth(frozen, int(w.table))
	again := i == m.redriver()
	suspects := w.fresh
	if m.filters && !again {
		key := w.list.of[t].token
		if m.off[byToken] {
			key = uint8(t + 1)
		}
		for _, f := range w.filters {
			if f.key != key {
				continue
			}
			suspects &= f.has
			if m.off[yesAsked] { // and a filter may say yes to anything
				for id := range ids {
					if w.fresh>>id&1 != 0 && !m.known(s, n, i, id) {
						return
					}
				}
				suspects = 0
			}
		}
	}
	if suspects != 0 && !m.uses(s, n, i, t) {
		return
	}
	for id := range ids {
		row := seen.rows[t][id]
		if suspects>>id&1 != 0 && row != none && (!again || row == applied) && !m.known(s, n, i, id) {
			return
		}
	}
	w.table++
	m.pass(w, i)
	m.emit(n, names[i], "asks table", t)
}

// insert puts the next ID into the next hot table.
func (m *model) insert(s, n *state, i int, seen *db) {
	w := &n.w[i]
	again := i == m.redriver()
	demand := []int{int(w.letter) - 1}
	if !again {
		demand = m.demanded(i)
	}
	t, id := w.list.nth(hot, int(w.table)), demand[w.at]
	if w.fresh>>id&1 != 0 {
		if h := s.holder(t, id, i); h >= 0 {
			m.waits(s, i, h)
			return
		}
		if !m.uses(s, n, i, t) {
			return
		}
		switch row := s.db.rows[t][id]; {
		case w.pend[t][id] != none:
			if !m.known(s, n, i, id) {
				return
			}
		case row == none || again && row == dead:
			w.pend[t][id] = applied
		case m.repeatable && i == 0 && seen.rows[t][id] == none: // 40001
			m.end(w)
			m.emit(n, names[i], "can't serialize", 0)
			return
		case m.off[everyTable] && w.table > 0:
		default:
			if w.table > 0 && !again && m.on(loserDead) {
				for o := range tables {
					if o != t && w.pend[o][id] == applied {
						w.pend[o][id] = dead
					}
				}
			}
			if !m.known(s, n, i, id) {
				return
			}
		}
	}
	if w.at++; int(w.at) == len(demand) {
		w.at = 0
		w.table++
	}
	m.pass(w, i)
	m.emit(n, names[i], "inserts into table", t)

	if m.savepoints && w.undone == 0 && i == 0 && s.w[i].pc == insert {
		n := *s
		w := &n.w[i]
		w.undone, w.held, w.touched, w.pend = 1, 0, 0, [tables][ids]how{}
		w.got, w.pc = 0, hold
		if m.off[relock] {
			w.got, w.table, w.at, w.pc = 1, 0, 0, ask
			m.pass(w, i)
		}
		m.emit(&n, names[i], "rolls back to before the lock", 0)
	}
}

// waits looks whether those who wait do so in a circle, or for a rotator.
func (m *model) waits(s *state, who, holder int) {
	label := step{m.name(who), "waits for " + m.name(holder), 0}
	if who < workers && holder >= workers {
		m.failed(label, s, "a batch waits for a rotator")
		return
	}
	for range workers + len(s.r) {
		if holder = m.waitsFor(s, holder); holder < 0 {
			return
		}
		if holder == who {
			m.failed(label, s, "a deadlock")
			return
		}
	}
}

func (m *model) name(i int) string {
	if i >= workers {
		return rotators[i-workers]
	}
	return names[i]
}

// waitsFor is for whom somebody waits; -1: nobody.
func (m *model) waitsFor(s *state, i int) int {
	if i >= workers {
		if r := &s.r[i-workers]; r.pc == rotCarry {
			return s.holder(int(r.into), r.next(), i)
		}
		return -1
	}
	w := &s.w[i]
	if w.pc != insert {
		return -1
	}
	id := int(w.letter) - 1
	if i != m.redriver() {
		id = m.demanded(i)[w.at]
	}
	if w.fresh>>id&1 == 0 {
		return -1
	}
	return s.holder(w.list.nth(hot, int(w.table)), id, i)
}

// commit ends a worker's transaction, with effects for what is fresh, or letters.
func (m *model) commit(s *state, i int) {
	if i == m.redriver() {
		n := *s
		id := int(s.w[i].letter) - 1
		m.write(&n, i)
		n.db.letter[id] = closed
		label := step{names[i], "closes as a duplicate the letter of ID", id}
		switch fresh := s.w[i].fresh != 0; {
		case fresh && s.db.truth[id]&effected != 0:
			m.failed(step{names[i], "applies the letter of ID", id}, &n, "a letter is applied that was applied")
			return
		case !fresh && s.db.truth[id]&effected == 0:
			m.failed(label, &n, "a letter that nobody applied is a duplicate")
			return
		case fresh:
			label.what = "applies the letter of ID"
		}
		if s.w[i].fresh != 0 {
			n.db.truth[id] |= ever | inside | effected
		}
		m.end(&n.w[i])
		m.out(label, &n)
		return
	}
	for _, bury := range []bool{false, true} {
		if bury && (!m.redrive || s.w[i].fresh == 0) {
			break
		}
		n := *s
		w := &n.w[i]
		label := step{names[i], "commits, fresh", int(w.fresh)}
		if bury {
			label.what = "commits, buried"
		}
		for id := range ids {
			if w.fresh>>id&1 == 0 {
				continue
			}
			if s.db.truth[id]&inside != 0 {
				m.failed(label, &n, "an ID is admitted twice")
				return
			}
			n.db.truth[id] |= ever | inside
			if bury {
				n.db.letter[id] = living
				for t := range tables {
					if w.pend[t][id] != none {
						w.pend[t][id] = dead
					}
				}
			} else {
				n.db.truth[id] |= effected
			}
		}
		m.write(&n, i)
		n.db.done[i]++
		m.end(w)
		m.out(label, &n)
	}
}

func (m *model) write(n *state, i int) {
	for t := range tables {
		for id, h := range n.w[i].pend[t] {
			if h != none {
				n.db.rows[t][id] = h
			}
		}
	}
}

// buildFilter reads a frozen table, and then looks whether its freezing stands.
func (m *model) buildFilter(s *state, i int) {
	if i == m.redriver() {
		return
	}
	n := *s
	w := &n.w[i]
	keyOf := func(t int) uint8 {
		if m.off[byToken] {
			return uint8(t + 1)
		}
		return w.list.of[t].token
	}
	if w.build.key != 0 {
		built, t := w.build, int(w.slot)
		w.build, w.slot = filter{}, 0
		e := s.db.of[t]
		if m.off[lookAgain] || m.off[byToken] || e.state == frozen && e.token == built.key {
			m.keep(w, built, keyOf)
			m.emit(&n, names[i], "keeps a filter of table", t)
		} else {
			m.emit(&n, names[i], "throws away a filter of table", t)
		}
		return
	}
	for t, e := range w.list.of {
		if e.state != frozen || w.filters[0].key == keyOf(t) || w.filters[1].key == keyOf(t) || s.emptying(t) {
			continue
		}
		n := *s
		w := &n.w[i]
		w.build, w.slot = filter{key: keyOf(t)}, uint8(t)
		for id := range ids {
			if s.db.rows[t][id] != none {
				w.build.has |= 1 << id
			}
		}
		m.emit(&n, names[i], "reads for a filter table", t)
	}
}

// keep keeps a filter in place of one that no table of the list needs.
func (m *model) keep(w *worker, f filter, keyOf func(int) uint8) {
	for j := range w.filters {
		needed := false
		for t, e := range w.list.of {
			needed = needed || e.state == frozen && w.filters[j].key == keyOf(t)
		}
		if !needed {
			w.filters[j] = f
			return
		}
	}
}

// reading says whether somebody builds a filter in a transaction that holds the table.
func (m *model) reading(s *state, t int) bool {
	if m.off[oneTransaction] {
		return false
	}
	for i := range s.w {
		if s.w[i].build.key != 0 && int(s.w[i].slot) == t {
			return true
		}
	}
	return false
}

func (s *state) letterLocked(id int) bool {
	for i := range s.w {
		if int(s.w[i].letter) == id+1 {
			return true
		}
	}
	return (s.r[0].locked|s.r[1].locked)>>id&1 != 0
}

func (r *rotator) next() int {
	for id := range ids {
		if r.left>>id&1 != 0 {
			return id
		}
	}
	return -1
}

// rotate is a rotator's next statement.
func (m *model) rotate(s *state, i int) {
	n := *s
	r, name := &n.r[i], rotators[i]
	switch r.pc {
	case rotIdle:
		if s.r[1-i].pc != rotIdle && m.on(rowLock) {
			return
		}
		r.pc, r.version = rotRow, s.db.version
		m.emit(&n, name, "locks the ring at version", int(r.version))
	case rotRow:
		m.test(s, i)
	case rotTested:
		m.choose(s, i)
	case rotLetters:
		missed := uint8(0)
		for id := range ids {
			if s.db.letter[id] == living && s.db.rows[r.slot][id] != none && r.left>>id&1 == 0 {
				missed = 1
			}
		}
		if missed != 0 && m.on(letterMissed) && m.on(carry) {
			*r = rotator{}
			m.emit(&n, name, "leaves a letter that is locked", 0)
			return
		}
		if r.pc = rotCarry; r.left == 0 {
			r.pc = rotCommit
		}
		m.emit(&n, name, "has locked letters", int(r.left))
	case rotCarry:
		id := r.next()
		if h := s.holder(int(r.into), id, workers+i); h >= 0 {
			m.waits(s, workers+i, h)
			return
		}
		if s.db.rows[r.into][id] == none {
			r.pend[id] = s.db.rows[r.slot][id]
		}
		if r.left &^= 1 << id; r.left == 0 {
			r.pc = rotCommit
		}
		m.emit(&n, name, "carries ID", id)
	case rotCommit:
		m.turn(&n, i)
	}
}

// test tries the lock of the version before the current one.
func (m *model) test(s *state, i int) {
	n := *s
	r, name := &n.r[i], rotators[i]
	hots := 0
	for _, e := range s.db.of {
		if e.state == hot {
			hots++
		}
	}
	r.pc = rotTested
	version := r.version - 1
	if hots == 2 && (m.off[testAtFreezing] || m.off[testLater]) {
		version = 0
	}
	free := !s.shared(version) && !s.exclusive(version)
	if hots == 1 && (m.off[testAtBoth] || m.off[testAtTruncation] || m.off[testAtDrop]) {
		// The tests are kept apart: it is chosen what may be done without.
		if r.tests = 0; free {
			r.tests = version
		}
		m.emit(&n, name, "looks at version", int(version))
		return
	}
	if version != 0 && !free {
		*r = rotator{}
		m.emit(&n, name, "finds in use version", int(version))
		return
	}
	r.tests = version
	m.emit(&n, name, "tests version", int(version))
}

// choose decides what to do; what is a matter of time may be due or not.
func (m *model) choose(s *state, i int) {
	name := rotators[i]
	tested := func(r rule) bool { return m.off[r] || s.r[i].version == 1 || s.r[i].tests != 0 }
	give := func(what string, t int, r rotator) {
		n := *s
		n.r[i] = r
		m.emit(&n, name, what, t)
	}
	l, r := &s.db.list, s.r[i]
	older, newer := l.nth(hot, 0), l.nth(hot, 1)
	if newer >= 0 {
		r.pc, r.act, r.slot = rotCommit, actFreeze, uint8(older)
		give("freezes table", older, r)
		return
	}
	if m.off[testAtBoth] || m.off[testAtTruncation] || m.off[testAtDrop] {
		give("does nothing", 0, rotator{})
	}
	var free []int // which of them becomes hot doesn't matter
	for t, e := range l.of {
		if e.state != unlisted {
			continue
		}
		if !s.used(t) {
			free = append(free, t)
			continue
		}
		if !tested(testAtTruncation) {
			continue
		}
		inUse := m.reading(s, t)
		for j := range s.w {
			inUse = inUse || s.w[j].touched>>t&1 != 0
		}
		if inUse { // NOWAIT
			continue
		}
		for j := range s.w {
			if w := &s.w[j]; w.got != 0 && w.pc >= ask && w.list.of[t].state != unlisted {
				m.failed(step{name, "empties table", t}, s, "a table is emptied that a transaction's list names")
				return
			}
		}
		r.pc, r.act, r.slot = rotCommit, actEmpty, uint8(t)
		give("empties table", t, r)
		return
	}
	if s.db.version < m.versions {
		if oldest := l.nth(frozen, 0); oldest >= 0 && tested(testAtDrop) {
			d := r
			d.pc, d.act, d.slot, d.into = rotLetters, actDrop, uint8(oldest), uint8(older)
			for id := range ids {
				if s.db.letter[id] == living && s.db.rows[oldest][id] != none && (m.off[letterLock] || !s.letterLocked(id)) && m.on(carry) {
					d.left |= 1 << id
				}
			}
			if m.on(letterLock) {
				d.locked = d.left
			}
			give("locks letters of table", oldest, d)
		}
		for _, t := range free {
			b := r
			b.pc, b.act, b.slot = rotCommit, actBoth, uint8(t)
			if m.off[testLater] { // of who works by the list that is current now
				if s.shared(b.version) {
					return
				}
				b.tests = 0
			}
			give("makes hot table", t, b)
		}
	}
	give("does nothing", 0, rotator{})
}

// used says whether a table is not empty.
func (s *state) used(t int) bool {
	for id := range ids {
		if s.db.rows[t][id] != none || s.holder(t, id, -1) >= 0 {
			return true
		}
	}
	return false
}

// turn commits a step of the ring.
func (m *model) turn(n *state, i int) {
	r := n.r[i]
	e := &n.db.of[r.slot]
	what := ""
	switch r.act {
	case actBoth:
		what = "commits both, now version"
		number := uint8(0)
		for _, o := range n.db.of {
			number = max(number, o.number)
		}
		*e = entry{state: hot, number: number + 1}
		if m.off[both] {
			for t := range n.db.of {
				if o := &n.db.of[t]; o.state == hot && t != int(r.slot) {
					n.tokens++
					o.state, o.token = frozen, n.tokens
				}
			}
		}
	case actFreeze:
		what = "commits frozen, now version"
		n.tokens++
		e.state, e.token = frozen, n.tokens
	case actDrop:
		what = "commits dropped, now version"
		*e = entry{}
		for id, h := range r.pend {
			if h != none {
				n.db.rows[r.into][id] = h
			}
		}
		m.forget(n)
	case actEmpty:
		n.db.rows[r.slot] = [ids]how{}
	}
	n.r[i] = rotator{}
	if r.act == actEmpty {
		m.emit(n, rotators[i], "commits emptied table", int(r.slot))
		return
	}
	n.db.version = r.version + 1
	m.emit(n, rotators[i], what, int(n.db.version))
}

// forget ends the window of IDs that lie in no table of the list, unless they have a
// living letter.
func (m *model) forget(n *state) {
	for id := range ids {
		if n.db.letter[id] == living {
			continue
		}
		listed := false
		for t, e := range n.db.of {
			listed = listed || e.state != unlisted && n.db.rows[t][id] != none
		}
		if !listed {
			n.db.truth[id] &= ever
		}
	}
}

// crash loses a transaction.
func (m *model) crash(s *state) {
	if s.crashes == 0 {
		return
	}
	for i := range m.all() {
		if s.w[i].pc != idle {
			n := *s
			n.crashes--
			m.end(&n.w[i])
			m.emit(&n, names[i], "loses its transaction", 0)
		}
	}
	for i := range m.rotators {
		if s.r[i].pc != rotIdle {
			n := *s
			n.crashes--
			n.r[i] = rotator{}
			m.emit(&n, rotators[i], "loses its transaction", 0)
		}
	}
}

// goBack takes the database back to a state that was committed before: once. All
// transactions are lost; what processes keep in memory is not.
func (m *model) goBack(s *state) {
	switch s.went {
	case 0:
		n := *s
		n.back, n.went = s.db, 1
		m.emit(&n, "the database", "is copied at version", int(s.db.version))
	case 1:
		n := *s
		n.db, n.back, n.went = s.back, db{}, 2
		for i := range n.w {
			m.end(&n.w[i])
			if m.on(oneTransaction) || !m.pooler {
				n.w[i].build, n.w[i].slot = filter{}, 0
			}
		}
		n.r = [2]rotator{}
		m.emit(&n, "the database", "goes back to version", int(n.db.version))
	}
}

// seed is one for all, so that a state has the same hash wherever it is met.
var seed = maphash.MakeSeed()

// canonical gives exchangeable workers one order.
func (m *model) canonical(s *state) {
	if s.w[0].pc == idle {
		s.snap = db{}
	}
	if !m.sort {
		return
	}
	type mine struct {
		w          worker
		done, back uint8
	}
	var all [workers]mine
	var hashes [workers]uint64
	for i := range len(m.batches) {
		all[i] = mine{s.w[i], s.db.done[i], s.back.done[i]}
		hashes[i] = maphash.Comparable(seed, all[i])
	}
	for i := 1; i < len(m.batches); i++ {
		for j := i; j > 0 && hashes[j] < hashes[j-1] && m.batches[j] == m.batches[j-1]; j-- {
			all[j], all[j-1] = all[j-1], all[j]
			hashes[j], hashes[j-1] = hashes[j-1], hashes[j]
		}
	}
	for i := range len(m.batches) {
		s.w[i], s.db.done[i], s.back.done[i] = all[i].w, all[i].done, all[i].back
	}
	if s.r[0] == (rotator{}) {
		s.r[0], s.r[1] = s.r[1], s.r[0]
	}
}

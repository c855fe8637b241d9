package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/semelhq/semel"
	"github.com/semelhq/semel/inbox"
	"github.com/semelhq/semel/internal/config"
	"github.com/semelhq/semel/kafka"
	"github.com/semelhq/semel/postgres"
)

// ResetTo says where a route is to read on. At most one of its places is set; none:
// where it is.
type ResetTo struct {
	Earliest, Latest bool
	Time             time.Time                 // the first message that is as late
	Shift            int64                     // offsets further, or back
	Offsets          map[semel.Partition]int64 // of these alone; "" as topic: the route's only one
	// Forget the IDs that the inbox knows.
	Forget bool
}

// Move is what a reset does to one partition.
type Move struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	// Again are the offsets that are read again, Skipped those that never will be.
	Again   int64 `json:"again"`
	Skipped int64 `json:"skipped"`
}

// ResetPlan is what a reset does, or did.
type ResetPlan struct {
	Route    string   `json:"route"`
	Consumer string   `json:"consumer"`
	State    string   `json:"state"` // paused, stopped
	Moves    []Move   `json:"moves"`
	Says     []string `json:"says"` // what comes of it, in plain words
	Done     bool     `json:"done"`
	// Unsigned says that the broker's offsets follow when the route goes on.
	Unsigned bool `json:"unsigned,omitempty"`
}

// ResetError is a reset that is refused.
type ResetError struct {
	Why, Hint string
	// Usage: what was asked for makes no sense, wherever the route stands.
	Usage bool
}

func (e *ResetError) Error() string { return e.Why }

func refuse(hint, format string, args ...any) error {
	return &ResetError{Why: fmt.Sprintf(format, args...), Hint: hint}
}

// Reset moves a stopped or paused route, if it is told to execute, and says what that
// does.
func (v *Viewer) Reset(ctx context.Context, r config.Route, to ResetTo, execute bool) (ResetPlan, error) {
	if err := v.p.reachBroker(ctx); err != nil {
		return ResetPlan{}, err
	}
	var err error
	if r.From.Topics, err = v.p.topics(ctx, r); err != nil {
		return ResetPlan{}, err
	}
	r.From.Matching = ""
	s := resetter{p: v.p, r: r, to: to}
	if err := s.look(ctx); err != nil {
		return ResetPlan{}, err
	}
	plan := ResetPlan{Route: r.Name, Consumer: r.Consumer, State: s.state}
	if !execute {
		rows := make([]inbox.Row, len(s.rows))
		for i, w := range s.rows {
			rows[i] = w.Row
		}
		_, _, err := s.decide(rows)
		plan.Moves, plan.Says = s.moves, s.says()
		return plan, err
	}
	store := postgres.NewInboxStore(v.p.pool, postgres.InboxConfig{Schema: v.p.file.Database.Schema, Logger: v.p.log})
	defer store.Close()
	rows, err := store.Reset(ctx, r.Consumer, to.Forget, s.decide)
	if err != nil {
		return plan, s.plain(err)
	}
	plan.Moves, plan.Says, plan.Done = s.moves, s.says(), true
	// The rows are what counts. Acks that aren't signed here are signed by the next
	// claim: only members may commit while there are any.
	var acks []inbox.Ack
	for _, row := range rows {
		acks = append(acks, inbox.SignedAck(s.database, r.Consumer, row))
	}
	err = v.p.admin.Commit(ctx, r.From.Group, acks)
	if plan.Unsigned = errors.Is(err, kafka.ErrGroupInUse); plan.Unsigned {
		err = nil
	}
	return plan, err
}

// resetter is a reset while it is decided.
type resetter struct {
	p        *parts
	r        config.Route
	to       ResetTo
	consumer postgres.ConsumerRow
	database string
	state    string
	rows     []postgres.WatermarkRow
	logs     map[semel.Partition]inbox.Witness
	moves    []Move
	unknown  []string // partitions that nobody has claimed yet
}

// look asks both sides, and refuses a route that runs.
func (s *resetter) look(ctx context.Context) (err error) {
	var ok bool
	if s.consumer, ok, err = s.p.consumer(ctx, s.r.Consumer); err != nil {
		return err
	}
	if ok {
		s.rows, err = s.p.memory.Watermarks(ctx, s.r.Consumer)
	}
	if err != nil {
		return err
	}
	s.rows = slices.DeleteFunc(s.rows, func(w postgres.WatermarkRow) bool { return !slices.Contains(s.r.From.Topics, w.Topic) })
	if len(s.rows) == 0 {
		return refuse("from.start in the file says where it begins", "route %s has no place yet: nothing was ever claimed", s.r.Name)
	}
	if s.state, err = s.standing(ctx); err != nil {
		return err
	}
	if s.to.Forget && s.consumer.Memory != inbox.MemoryInbox {
		why := "messages are known by their position, and no IDs are kept"
		if s.consumer.Memory == inbox.MemoryTarget {
			why = "the table itself remembers: an ID is known as long as its row is there"
		}
		return refuse("leave --forget-ids out", "route %s has no inbox to forget: %s", s.r.Name, why)
	}
	if s.database, err = s.p.memory.Identity(ctx); err != nil {
		return err
	}
	return s.witness(ctx)
}

// standing is paused or stopped; a route that runs is refused, as it would go on from
// a place that it doesn't expect.
func (s *resetter) standing(ctx context.Context) (string, error) {
	if s.consumer.Paused {
		return "paused", nil
	}
	g, err := s.p.admin.Group(ctx, s.r.From.Group)
	if err != nil {
		return "", err
	}
	if g.Members > 0 {
		return "", refuse("semel pause "+s.r.Name+", and semel resume when it is where it should be",
			"route %s runs: its group %s has %s", s.r.Name, s.r.From.Group, count(g.Members, "member"))
	}
	return "stopped", nil
}

func (s *resetter) witness(ctx context.Context) error {
	r := s.r
	if !s.to.Time.IsZero() {
		r.From.Start = config.Start{Mode: config.StartTime, Time: s.to.Time}
	}
	src, err := kafka.NewSource(s.p.source(r, 0, 1<<20, slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	defer src.Close()
	ws, err := src.Witness(ctx, r.From.Topics)
	if err != nil {
		return err
	}
	s.logs = map[semel.Partition]inbox.Witness{}
	for _, w := range ws {
		s.logs[w.Partition] = w
		if !slices.ContainsFunc(s.rows, func(row postgres.WatermarkRow) bool { return row.Partition == w.Partition }) {
			s.unknown = append(s.unknown, w.Partition.String())
		}
	}
	return nil
}

// decide places the rows. It is called again if the transaction is.
func (s *resetter) decide(rows []inbox.Row) (moved []inbox.Row, events []inbox.Event, err error) {
	s.moves = nil
	offsets := map[semel.Partition]int64{}
	for p, at := range s.to.Offsets {
		if p.Topic == "" {
			p.Topic = s.r.From.Topics[0]
		}
		offsets[p] = at
	}
	for _, row := range rows {
		w, ok := s.logs[row.Partition]
		if !ok {
			continue // of a topic that the route reads no more, or that is gone
		}
		at, err := s.place(row, w, offsets)
		if err != nil {
			return nil, nil, err
		}
		delete(offsets, row.Partition)
		next, evs, err := inbox.Reset(s.database, s.r.Consumer, row, w, at)
		if err != nil {
			return nil, nil, err
		}
		moved, events = append(moved, next), append(events, evs...)
		m := Move{Topic: row.Topic, Partition: row.Partition.Number, From: row.Next, To: at}
		switch {
		case row.TopicID != w.TopicID: // another log
			m.Again, m.Skipped = w.Stable-at, at-w.Start
		default:
			m.Again, m.Skipped = max(0, row.Next-at), max(0, at-max(row.Next, w.Start))
		}
		s.moves = append(s.moves, m)
	}
	for p := range offsets {
		return nil, nil, &ResetError{Why: fmt.Sprintf("--to-offset: route %s has no place in %s", s.r.Name, p), Hint: "semel status shows its partitions", Usage: true}
	}
	return moved, events, nil
}

func (s *resetter) place(row inbox.Row, w inbox.Witness, offsets map[semel.Partition]int64) (int64, error) {
	switch {
	case s.to.Earliest:
		return w.Start, nil
	case s.to.Latest:
		return w.Stable, nil
	case !s.to.Time.IsZero():
		return max(w.Begin, w.Start), nil
	case s.to.Shift != 0:
		return min(max(row.Next+s.to.Shift, w.Start), w.Stable), nil
	}
	at, named := offsets[row.Partition]
	if !named {
		at = row.Next
	} else if at < w.Start || at > w.Stable {
		return 0, &ResetError{Why: fmt.Sprintf("--to-offset: %s holds offsets %d to %d, and %d is not among them", row.Partition, w.Start, w.Stable, at), Usage: true}
	}
	return at, nil
}

// says tells what comes of the moves.
func (s *resetter) says() (says []string) {
	say := func(format string, args ...any) { says = append(says, fmt.Sprintf(format, args...)) }
	var again, skipped int64
	for _, m := range s.moves {
		again, skipped = again+m.Again, skipped+m.Skipped
	}
	if skipped > 0 {
		say("What is skipped never takes effect, unless the route is set back again.")
	}
	if again > 0 {
		say("%s", s.repeats())
	}
	if s.to.Forget {
		say("The inbox forgets all IDs: what a producer sends again, of messages before this, takes effect again too.")
	}
	if len(s.unknown) > 0 {
		say("Without a place yet, and left alone: %s.", strings.Join(s.unknown, ", "))
	}
	return says
}

// repeats says what the memory does with messages that come again, and the table with
// those that the memory lets through.
func (s *resetter) repeats() string {
	switch {
	case s.consumer.Memory == inbox.MemoryTarget:
		return "A message whose row is in the table is a duplicate and changes nothing; one whose row was deleted comes again."
	case s.consumer.Memory == inbox.MemoryInbox && !s.to.Forget:
		return fmt.Sprintf("A message whose ID the inbox still knows (%s) is a duplicate and changes nothing, one that was buried too. "+
			"An older one takes effect again. %s --forget-ids lets all of them take effect again.", days(s.consumer.Window), s.effect())
	}
	return "Nothing recognises what comes again: every message takes effect again. " + s.effect()
}

func (s *resetter) effect() string {
	switch {
	case s.r.To.Write == config.Insert && s.r.To.OnExists == config.ExistsDeadLetter:
		return "A row that is there makes it a dead letter."
	case s.r.To.Write == config.Insert:
		return "A row that is there makes it a duplicate."
	case !s.r.To.Version.IsZero():
		return "A state that isn't newer than its row is stale and changes nothing."
	case len(s.r.To.Combine) > 0:
		return "What it adds (" + strings.Join(s.r.To.Combine, ", ") + ") is added a second time."
	case s.r.To.Write == config.Upsert, s.r.To.Write == config.Mirror:
		return "Rows go back to older states, until the newest has come again."
	case s.r.To.Write == config.SQL:
		return "The SQL is run for it a second time."
	case s.r.To.Write == config.Append:
		return "Its row is added a second time."
	}
	return ""
}

// plain finds the hint for a role that may not make tables.
func (s *resetter) plain(err error) error {
	if s.to.Forget && postgres.IsNotOwner(err) {
		return refuse("run it as the owner of schema "+s.p.file.Database.Schema, "this role may not make the new inbox: %v", Plain(err))
	}
	return err
}

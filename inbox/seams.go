package inbox

import (
	"context"
	"errors"
	"time"

	"github.com/semelhq/semel"
)

// Source is where deliveries come from: one member of a consumer group. It is
// used by one goroutine at a time, except for Close.
type Source interface {
	// Topics are the topics that are read.
	Topics() []string

	// Cluster names the cluster behind the source; "" if it has no name.
	Cluster(ctx context.Context) (string, error)

	// Poll waits until messages, a change of the assignment or the end of ctx
	// come, and answers with what is there: at most max messages. With max = 0
	// it fetches nothing and answers changes of the assignment alone; that is
	// how a lane that can't work keeps its place in the group. A rebalance takes
	// effect only inside Poll: what the previous delivery said stands until the
	// next call. The buffers of the previous delivery are given back by the call.
	//
	// When ctx ends Poll answers an empty delivery and no error. An error means
	// that the broker can't be used now; calling again tries again.
	Poll(ctx context.Context, max int) (Delivery, error)

	// More answers what a Poll would find at once if it is only messages, as a
	// further delivery: at most max. It answers nothing where Poll has something
	// else to say, and may always do so; it never waits. The buffers of the
	// delivery before stay, those of the ones before that are given back: one is
	// written while the next is decoded. It may be called beside Hold and Ack.
	More(max int) []Run

	// Seek makes the next run of each partition start exactly at its mark and
	// ends a Hold. What was fetched before and not yet polled is thrown away.
	Seek(ctx context.Context, to []Mark) error

	// Hold stops fetching the partitions until the next Seek.
	Hold(ps []semel.Partition)

	// Ack hands over that everything below the mark is settled and durable. It
	// doesn't wait for the broker, may merge acks, and never lets the broker's
	// offset of a partition go back. Acks of partitions that are no longer
	// assigned are dropped.
	Ack(acks []Ack)

	// Sign commits acks at the broker, whatever the assignment, and waits until
	// the broker has accepted them. It may lower an offset.
	Sign(ctx context.Context, acks []Ack) error

	// Witness says what broker and group know of all partitions of the topics.
	// A topic that doesn't exist is an error, see [UnknownTopicError].
	Witness(ctx context.Context, topics []string) ([]Witness, error)

	// EpochEnd asks the partition's leader where the given epoch ends in its
	// log, past every cache.
	EpochEnd(ctx context.Context, p semel.Partition, epoch int32) (EpochEnd, error)

	// Confirm asks the coordinator whether this member is still part of the
	// group, and which partitions it has; they may be fewer than Poll said.
	Confirm(ctx context.Context) error

	// Member is the name under which the group knows this process; "" before it
	// has joined. Static members have an instance name.
	Member() (member, instance string)

	// Members are those that the group has now, this one included.
	Members(ctx context.Context) ([]Member, error)

	// Evict makes members leave the group: the remains of a process that is
	// known to be dead. Called before the first Poll.
	Evict(ctx context.Context, members []string) error

	// Leave hands outstanding acks to the broker, waits for them, and leaves the
	// group, so that the partitions move on at once. A later Poll joins again. With
	// an error too all partitions are given up.
	Leave(ctx context.Context) error

	// Close leaves and frees everything.
	Close()
}

// Member is one of a group, and the process that it says it is of ([Owner.Process]);
// "" if it doesn't say.
type Member struct{ ID, Process string }

// Delivery is what one Poll brings.
type Delivery struct {
	Gained []semel.Partition // newly assigned; their runs come after a Seek
	Lost   []semel.Partition // no longer assigned
	// Doubted are assigned partitions whose place in the log must be proved
	// again: fetched out of range, another leader epoch, another topic ID. They
	// are held until the next Seek.
	Doubted []semel.Partition
	Runs    []Run // at most one of each partition
}

// Run is a stretch of one log, in order: From <= offsets < To; holes are legal.
type Run struct {
	semel.Partition
	TopicID  semel.TopicID
	From     int64 // the end of the previous run, or where the Seek went
	To       int64
	End      int64 // the log's last stable offset when this was fetched; -1 unknown
	Epochs   []Epoch
	Messages []semel.Message
}

// Epoch is a stretch of a log that one leader wrote: from First on, until the
// next one begins.
type Epoch struct {
	Number int32 `json:"epoch"`
	First  int64 `json:"first"`
}

// EpochEnd is a leader's answer: the largest epoch up to the one asked for that
// it knows, and where that one ends (exclusive). Number -1: it knows none.
type EpochEnd struct {
	Number int32
	End    int64
}

// Mark is a place in a partition: the next offset.
type Mark struct {
	semel.Partition
	Next int64
}

// Ack is a mark for the broker, signed: Note is kept beside the offset.
type Ack struct {
	Mark
	Note string
}

// Witness is the testimony of broker and group about one partition.
type Witness struct {
	semel.Partition
	TopicID semel.TopicID // zero if the broker has no topic IDs
	Start   int64         // the first offset still there
	End     int64         // the end of the log (high watermark)
	Stable  int64         // the last stable offset: a reader of committed messages gets this far
	Begin   int64         // where a consumer without any memory begins, by the source's start rule; ignores the group's offset
	Acked   int64         // the group's committed offset; -1 none
	Note    string        // what is kept beside Acked
	// FollowGroup says that the start rule takes an existing group's offset.
	FollowGroup bool
	Epoch       int32         // the leader's epoch now; -1 unknown
	Retention   time.Duration // of the topic; 0 unknown, negative without end
}

// UnknownTopicError names a topic that the broker doesn't have.
type UnknownTopicError struct{ Topic string }

func (e *UnknownTopicError) Error() string { return "topic " + e.Topic + " does not exist" }

// ErrNoRow is Claim's answer for a partition that was never introduced, or whose
// database went back to before it was.
var ErrNoRow = errors.New("no row for the partition")

// Token is a claim's random name. Generations may be given out twice by a
// database that went back in time; tokens are not.
type Token [16]byte

// Claim is the right to settle one partition.
type Claim struct {
	semel.Partition
	TopicID    semel.TopicID
	Token      Token
	Generation int64
}

// Row is a consumer's place in a partition, as the database keeps it.
type Row struct {
	Claim
	Start         int64 // where the accounts began
	Adopted       int64 // the group's offset that was there before us, or at a reset; -1 none
	Next          int64 // the watermark: everything below is settled
	Owner         *Owner
	UncleanClaims int     // in a row, by processes that died with messages left and settled none
	Trial         *Trial  // of the message that is next, or was; nil: none
	Epochs        []Epoch // the last few, ascending
	Ahead         *Ahead  // at most once: what Next was moved over before its effect; nil: nothing
	Accounts      Accounts
	Updated       time.Time
	RecordTime    time.Time // of the newest message that was settled; zero: unknown
}

// Trial is a message that is tried alone, since processes have died here.
type Trial struct {
	At      int64 `json:"at"`                // Next, while it is tried
	Deaths  int   `json:"deaths"`            // of processes that tried it
	Running bool  `json:"running,omitempty"` // it is being tried
}

// Ahead is a stretch of messages below the watermark whose effect is not known. They
// are among [Accounts.Lost] until it is.
type Ahead struct {
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Count int64  `json:"count"`
	Sum   uint64 `json:"sum"` // as in a [Tally]
}

// Tally is that of its messages.
func (a *Ahead) Tally() Tally { return Tally{a.Count, a.Sum} }

// Owner names the process that holds a claim.
type Owner struct {
	Member   string    `json:"member,omitempty"`   // of the consumer group
	Instance string    `json:"instance,omitempty"` // static membership
	Host     string    `json:"host"`               // of the machine or container, unique per boot
	PID      int       `json:"pid"`
	Started  string    `json:"started"` // of the process, in the host's own clock ticks
	Name     string    `json:"name"`    // for people: host name
	At       time.Time `json:"at"`
}

// Record is what is kept of a consumer when it starts, so that a change is
// noticed.
type Record struct {
	Name    string
	Cluster string
	Topics  []string
	IDRule  string
	Target  string
	// Memory says what remembers: MemoryInbox, or the watermark (and the
	// target's own unique index) alone.
	Memory Memory
	// Window is how long the inbox remembers IDs; 0: no inbox.
	Window time.Duration
	// AcceptChange takes a changed record over the old one instead of answering
	// a [ChangedError].
	AcceptChange bool
}

// Memory is what recognises a repeat by its producer.
type Memory string

const (
	MemoryPosition Memory = "position" // the watermark alone: producers' repeats are new messages
	MemoryInbox    Memory = "inbox"    // a row per message ID
	MemoryTarget   Memory = "target"   // the target's unique index over exactly the ID
)

// Registration is what the database answers when a consumer starts.
type Registration struct {
	Database string // the database's identity: random, made with Semel's tables
	Scope    int32
	Paused   bool
	Reason   string // why it is paused
}

// Store is the memory's side of the machine: one lane's connection to the
// database. It is used by one goroutine at a time.
type Store[T any] interface {
	// Open records the consumer, or compares it with what is recorded. A
	// difference is a [ChangedError].
	Open(ctx context.Context, c Record) (Registration, error)

	// Introduce hands decide all rows of the topic, under one lock per consumer
	// and topic, and writes the rows that it answers with, in one transaction.
	// decide may ask the broker, and is called again if the transaction is; its
	// error is answered and nothing was written.
	Introduce(ctx context.Context, topic string, decide func(known []Row) (added []Row, events []Event, err error)) (all []Row, err error)

	// Claim answers [ErrNoRow] if there is no row. Else it locks the row, hands it to decide, and writes what that
	// answers with the next generation, a new token and the owner, in one
	// transaction. A session of an older claim that holds the row is ended. If
	// decide fails nothing changes and its error is answered.
	Claim(ctx context.Context, p semel.Partition, owner Owner, decide func(Row) (Row, []Event, error)) (Row, error)

	// Look reads rows again, and the route's desired state: a database that went
	// back shows here. Rows that are gone are left out. No topics: all rows of
	// the consumer.
	Look(ctx context.Context, ps []semel.Partition) (Look, error)

	// Begin opens a transaction, locks the rows of the spans and compares claim
	// token, topic ID and Next = From: one mismatch and there is no transaction,
	// and the error is a [FencedError].
	Begin(ctx context.Context, spans []Span) (Tx[T], error)

	// Try records a trial, before it runs, if the claim is still ours.
	Try(ctx context.Context, c Claim, t Trial) error

	// Survived takes a trial back, whosever the claim is: this process has outlived
	// it.
	Survived(ctx context.Context, p semel.Partition, at int64) error

	// Release clears the owners of claims that are still ours, and what was counted
	// against them: a clean stop.
	Release(ctx context.Context, claims []Claim) error

	// Record writes events.
	Record(ctx context.Context, events []Event) error

	// Redrive opens a transaction on a dead letter of the consumer that is marked to
	// be handled again, the first one above number after, and locks it: that lock is
	// the right to handle it. Letters that another session has locked are passed
	// over. Only those of the partitions are looked at, and those of partitions that
	// nobody owns; nil: all. It answers nil if there is none.
	//
	// A letter of class crash loses its mark, and an attempt is counted, before it is
	// handed out: whoever dies of it does so once.
	Redrive(ctx context.Context, ps []semel.Partition, after int64) (Redrive[T], error)

	// Rebury gives a letter that is open its new reason, counts the attempt, and takes
	// the mark away. A letter that was closed meanwhile stays as it is.
	Rebury(ctx context.Context, number int64, why DeadLetter) error

	// Forget removes what the window no longer covers, a step at a time; it says
	// whether there is more. place is the record time that the slowest partition of
	// the consumer has come to: what waits in the log was sent while what it repeats
	// was still remembered. Zero: unknown.
	Forget(ctx context.Context, place time.Time) (more bool, err error)

	// Class says what an error of this store means to the flow. A nil Tx of the
	// error's origin is judged by this method; inside a transaction use Tx.Class.
	Class(err error) Class

	// Close frees the connection.
	Close()
}

// Look is what a database says now.
type Look struct {
	Rows   []Row
	Paused bool
	Reason string
	// Marked says that dead letters wait to be handled again.
	Marked bool
}

// Span is a stretch of a partition to settle, and the right to it.
type Span struct {
	Claim
	From, To int64
	Epochs   []Epoch // that begin inside the stretch
}

// Tx is one transaction: effects, memory and accounts, together or not at all.
type Tx[T any] interface {
	// DB is what handlers write with.
	DB() T

	// Admit records IDs, which must differ from one another, and answers for
	// each what was known of it. Order of the answers: of the admissions.
	Admit(ctx context.Context, ids []Admission) ([]Verdict, error)

	// Bury keeps messages as dead letters, and marks their IDs as dead where this
	// transaction admitted them: not those of collisions, which are another's.
	Bury(ctx context.Context, letters []DeadLetter) error

	// Failed says, without asking the database, whether a statement has failed in
	// this transaction, so that no later one can succeed.
	Failed() bool

	// Commit moves the watermarks, adds to the accounts and commits. If it
	// answers an error of class ClassAmbiguous the transaction may have been
	// committed or not; with every other error it was not.
	Commit(ctx context.Context, settled []Settled) error

	// Rollback is safe to call at any time, also after Commit.
	Rollback(ctx context.Context)

	// Class says what an error means that was met inside this transaction, a
	// handler's own included.
	Class(err error) Class

	// Describe gives the parts of an error that a dead letter keeps.
	Describe(err error) (sqlstate, text string)
}

// Chainer is a Tx whose COMMIT can begin the next transaction in the same breath.
type Chainer[T any] interface {
	// CommitAndBegin is Commit and, once that is done, [Store.Begin] of the next
	// spans. Its error is Commit's; where only the second fails begun is nil, and
	// Begin will say why.
	CommitAndBegin(ctx context.Context, settled []Settled, next []Span) (begun Tx[T], err error)
}

// Prober is a Tx in which effects can be tried and taken back while it goes on: what
// a batch refuses is then found in one transaction.
type Prober interface {
	// Probe runs f and has the database judge what it did as COMMIT would. If f fails
	// or is refused, that alone is taken back, and the transaction goes on unless it
	// has Failed. What passes stays until TakeBack, and costs the database something
	// until then: many probes should not stand at a time.
	Probe(ctx context.Context, f func() error) error

	// TakeBack undoes all probes: the transaction is as before the first one.
	TakeBack(ctx context.Context) error
}

// Redrive is the transaction in which a dead letter is handled again.
type Redrive[T any] interface {
	Tx[T]

	// Letter is the letter, locked.
	Letter() Letter

	// Readmit is Admit for an ID that may be known as dead: that one is fresh, and
	// known as applied from then on. Contents are not compared.
	Readmit(ctx context.Context, a Admission) (Verdict, error)

	// Close closes the letter and commits. One that was applied is counted beside
	// the accounts of its partition. Its errors are those of Commit.
	Close(ctx context.Context, how Outcome) error
}

// Letter is a dead letter as it is kept.
type Letter struct {
	Number int64
	DeadLetter
}

// Admission asks for a place in the inbox.
type Admission struct {
	ID     semel.ID
	Digest Digest // of the mapped values; zero: not compared
	Dead   bool   // the message is being buried
}

// Digest is a short checksum of what a message says, to tell an honest repeat
// from another message under the same ID.
type Digest [16]byte

// Verdict is what the inbox knew of an ID.
type Verdict uint8

const (
	Fresh     Verdict = iota // not known; it is now
	Duplicate                // known
	Collision                // known with another digest
)

// Settled is what is written of a span when it is committed.
type Settled struct {
	Span
	Accounts Accounts  // to be added
	Ahead    *Ahead    // of the row from now on
	Newest   time.Time // record time of the last message; zero: there is none
}

// DeadLetter is a message settled without effect, kept with the reason.
type DeadLetter struct {
	Message  semel.Message
	SentID   string // as the sender wrote it
	ID       semel.ID
	Class    DeadClass
	SQLState string
	Error    string
	Attempts int
}

// DeadClass says what kind of reason buried a message.
type DeadClass string

const (
	DeadDecode     DeadClass = "decode"
	DeadMissingID  DeadClass = "missing-id"
	DeadCollision  DeadClass = "collision"
	DeadValue      DeadClass = "value"
	DeadConstraint DeadClass = "constraint"
	DeadHandler    DeadClass = "handler"
	DeadCrash      DeadClass = "crash"
)

// Event is something that an operator wants to know later.
type Event struct {
	semel.Partition
	Kind   string // one of the constants, or another word for people
	Detail map[string]any
}

// Kinds of events that programs read.
const (
	EventClaim        = "claim"         // next, topic_id, settled, settled_sum: a border between two owners
	EventCut          = "cut"           // the log was cut: offsets before it name other messages now
	EventTopicChanged = "topic-changed" // the accounts start anew
	EventLost         = "lost"          // at most once: from, to, lost, sum: moved over, and without an effect
)

// Effect is what a route does with messages: a handler, or rows of a table.
type Effect[T any] interface {
	// Decode looks at messages once, before any transaction and perhaps on
	// another goroutine than Apply; two calls for other items may run side by
	// side, and so does what finds IDs. It fills ID,
	// Digest, Load, Skip or Err of each item. IDs by the consumer's rule are set already
	// unless the effect brings its own. A Load of an earlier message may be found
	// in the item, and used again: the two are never in use together.
	//
	// An Err that is a semel.OutageError buries nothing: the batch is given up and
	// read again with back-off. Decode should answer such items at once, not each
	// after a wait of its own.
	Decode(items []Item)

	// Apply makes the effects of the items, which are fresh and in order; with
	// [MemoryTarget] nobody has looked whether they are. It may
	// set the Outcome of an item to Duplicate, Stale, Superseded or Skipped, or
	// bury an item by its Err; Applied is the default. An error means that
	// nothing of this transaction counts; semel.FailedAt names the item.
	Apply(ctx context.Context, tx Tx[T], items []*Item) error
}

// Renewer is an Effect that keeps what it knows of its target, which somebody may
// alter while it runs.
type Renewer[T any] interface {
	// Renew looks at the target of a topic's messages again, so that what is decoded
	// from now on is made for it as it is. A target that the route doesn't fit any
	// more is a [HaltError] of the kind [HaltTableChanged].
	Renew(ctx context.Context, tx Tx[T], topic string) error
}

// HaltTableChanged is the kind of a halt at a target that was altered: it says
// nothing about the message at which that was found.
const HaltTableChanged = "table-changed"

// Separable is an Effect that may be applied several times in one transaction, as
// if each had one of its own. A handler can't say so: what it leaves in the session
// (settings, temporary tables, cursors) may make a later message fail.
type Separable interface {
	// Separable says that Apply leaves nothing in the transaction but rows.
	Separable() bool
}

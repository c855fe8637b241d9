package mutants

import "slices"

// Files that the guards stand in.
const (
	lane     = "inbox/lane.go"
	settle   = "inbox/settle.go"
	attempt  = "inbox/attempt.go"
	outage   = "inbox/outage.go"
	claim    = "inbox/claim.go"
	prove    = "inbox/prove.go"
	batch    = "inbox/batch.go"
	limit    = "inbox/limit.go"
	note     = "inbox/note.go"
	handler  = "inbox/handler.go"
	accounts = "inbox/accounts.go"
	memory   = "inbox/inboxtest/db.go"
	suite    = "./inbox/inboxtest"
	labs     = "./lab"
	commands = "./cmd/semel"
	redrive  = "inbox/redrive.go"
	letters  = "postgres/redrive.go"
)

var redriven = []mutant{
	{
		guard: "redrive: a locked letter is passed over",
		edits: []edit{{memory, `|| !mine || db.locks[lock] != nil {`, `|| !mine {`}},
		pkg:   suite, tests: []string{"TestMemoryStore/MarkedLetterIsHandledOnce"},
	},
	{
		guard: "redrive: the end of a process is no failure of the message",
		edits: []edit{{"inbox/redrive.go", `case ctx.Err() != nil: // the end`, `case false: // the end`}},
		tests: []string{"TestKilledAtAnyStepOfARedrive"},
	},
	{
		guard: "redrive: what was applied meanwhile is closed without effect",
		edits: []edit{{"inbox/redrive.go", `if v != Fresh {`, `if v != Fresh && false {`}},
		tests: []string{"TestLetterWhoseMessageWasAppliedMeanwhileIsClosedWithoutEffect"},
	},
	{
		guard: "postgres: redrive locks its letter and passes over locked ones",
		edits: []edit{{"postgres/redrive.go", `FOR UPDATE OF d SKIP LOCKED`, `FOR KEY SHARE OF d SKIP LOCKED`}},
		pkg:   pg, tests: []string{"TestStoreSuite/MarkedLetterIsHandledOnce"},
	},
	{
		guard: "postgres: only an ID known as dead is fresh to a redrive",
		edits: []edit{{"postgres/redrive.go", ` WHERE i.how = 'd'`, ``}},
		pkg:   pg, tests: []string{"TestStoreSuite/MarkedLetterOfAnAppliedID"},
	},
	{
		guard: "postgres: a collision doesn't make the ID of another dead",
		edits: []edit{{pgTx, `if l.Class != inbox.DeadCollision && t.admitted(l.ID) {`, `if t.admitted(l.ID) {`}},
		pkg:   pg, tests: []string{"TestStoreSuite/CollisionLeavesTheIDApplied"},
	},
	{
		guard: "postgres: a letter that is closed isn't buried again",
		edits: []edit{{"postgres/redrive.go", ` AND consumer = $2 AND state IN ('buried', 'redrive')`, ` AND consumer = $2`}},
		pkg:   pg, tests: []string{"TestStoreSuite/ReburyTakesTheMarkAway"},
	},
	{
		guard: "redrive: the memory is asked before the effect is made",
		edits: []edit{{redrive, `	if l.cfg.Memory == MemoryInbox {
		v, err := tx.Readmit`, `	if false {
		v, err := tx.Readmit`}},
		tests: []string{"TestLetterWhoseMessageWasAppliedMeanwhileIsClosedWithoutEffect"},
	},
	{
		guard: "redrive: a letter has the ID that it was buried under",
		edits: []edit{{redrive, `if !letter.ID.IsZero() {`, `if false {`}},
		tests: []string{"TestRedriveKnowsALetterByTheIDItWasBuriedUnder"},
	},
	{
		guard: "redrive: the table is looked at as it is now",
		edits: []edit{{redrive, `	if !ok {
		return nil`, `	if !ok || true {
		return nil`}},
		pkg: pg, tests: []string{"TestARedriveSeesTheTableAsItIsNow/append,_widened"},
	},
	{
		guard: "redrive: a table that doesn't fit any more is no letter's fault",
		edits: []edit{{redrive, `halt.Kind == HaltTableChanged: //`, `false: //`}},
		pkg:   pg, tests: []string{"TestARedriveHaltsWhereTheTableDoesNotFitAnyMore/a_mapped_column"},
	},
	{
		guard: "redrive: the letter of a collision isn't closed as a duplicate",
		edits: []edit{{redrive, `if letter.Class == DeadCollision {`, `if false {`}},
		tests: []string{"TestLetterOfACollisionStaysBuried"},
	},
	{
		guard: "dead: numbers are those of the file's consumers",
		edits: []edit{{"cmd/semel/dead.go", `	} else if !d.everywhere {
`, `	} else if false {
`}},
		pkg: commands, tests: []string{"TestScripts/operate"},
	},
	{
		guard: "redrive: what fails again loses its mark",
		edits: []edit{{redrive, `return true, l.cfg.Store.Rebury(ctx, letter.Number, letter.DeadLetter)`, `return true, nil`}},
		tests: []string{"TestRedriveThatFailsAgainIsBuriedAgain"},
	},
	{
		guard: "postgres: what is redriven is known as applied",
		edits: []edit{{letters, `SET how = 'a', digest`, `SET digest`}},
		pkg:   pg, tests: []string{"TestStoreSuite/LettersOfOneIDAreAppliedOnce"},
	},
	{
		guard: "postgres: a redrive holds the row of its partition",
		edits: []edit{{letters, `partition = $3 FOR UPDATE`, `partition = $3`}},
		pkg:   pg, tests: []string{"TestClaimEndsARedriveThatHoldsTheRow"},
	},
	{
		guard: "postgres: a claim ends a redrive",
		edits: []edit{{letters, `const redriving = "redrive"`, `const redriving = claiming`}},
		pkg:   pg, tests: []string{"TestClaimEndsARedriveThatHoldsTheRow"},
	},
	{
		guard: "postgres: a letter is closed in the transaction of its effect",
		edits: []edit{{letters, `	if err := r.tx.SendBatch(ctx, &b).Close(); err != nil {
		return r.note(err)
	}
	return r.Commit(ctx, nil)`, `	if err := r.Commit(ctx, nil); err != nil {
		return err
	}
	return r.store.short(ctx, nil, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &b).Close() })`}},
		pkg: labs, tests: []string{"TestKilledAtEveryStepOfARedrive/position_here_false"},
	},
	{
		guard: "postgres: a letter that kills loses its mark before it runs",
		edits: []edit{{letters, `if err == nil && letter.Class == inbox.DeadCrash {`, `if false {`}},
		pkg:   pg, tests: []string{"TestStoreSuite/MarkedLetterThatKillsLosesItsMark"},
	},
	{
		guard: "redrive: no old value is put over a newer one unless that is said",
		edits: []edit{{"cmd/semel/redrive.go", `if !daemon.InOrder(r) && !d.outOfOrder {`, `if false {`}},
		pkg:   commands, tests: []string{"TestScripts/redrive"},
	},
	{
		guard: "redrive: whoever overwrites rows and has no version is refused",
		edits: []edit{{"internal/daemon/redrive.go", `return !state || r.To.Version`, `return state || r.To.Version`}},
		pkg:   commands, tests: []string{"TestScripts/redrive"},
	},
}

// crashes are the guards around messages that kill.
var crashes = []mutant{
	{
		guard: "careful: a trial is recorded before it runs",
		edits: []edit{{"inbox/careful.go", `return l.cfg.Store.Try(ctx, p.claim, t)`, `return nil`}},
		pkg:   labs, tests: []string{"TestAMessageThatKillsTheProcessIsFoundAndBuried/1_lanes"},
	},
	{
		guard: "careful: deaths count against their own message alone",
		edits: []edit{{"inbox/careful.go", `if p.trial != nil && p.trial.At == s.from {`, `if p.trial != nil {`}},
		pkg:   labs, tests: []string{"TestKillsBuryNobody"},
	},
	{
		guard: "careful: a clean stop takes the marks away",
		edits: []edit{
			{pgStore, `unclean_claims = 0, trial = NULL"`, `unclean_claims = 0"`},
			{"inbox/careful.go", `r.UncleanClaims, r.Trial = 0, nil`, `r.UncleanClaims = 0`},
		},
		pkg: labs, tests: []string{"TestKillsBuryNobody"},
	},
	{
		guard: "careful: two batches' worth, not until the first commit",
		edits: []edit{{"inbox/attempt.go", `p.careful = max(0, p.careful-len(s.items)); p.next >= p.end {`, `p.careful = 0; true {`}},
		pkg:   labs, tests: []string{"TestAMessageThatKillsTheProcessIsFoundAndBuried/1_lanes"},
	},
	{
		guard: "careful: a trial waits for the other lanes, and keeps them waiting",
		edits: []edit{{"inbox/careful.go", `	crowd.waiting.Add(1)
	crowd.Lock()
	crowd.waiting.Add(-1)
	defer crowd.Unlock()
`, ``}},
		pkg: labs, tests: []string{"TestNobodyDiesWhileAnotherLanesMessageIsTried/both_careful_true", "TestNobodyDiesWhileAnotherLanesMessageIsTried/both_careful_false"},
	},
	{
		guard: "careful: lanes that aren't work only while nothing is tried",
		edits: []edit{{"inbox/careful.go", `	crowd.RLock()
	defer crowd.RUnlock()
`, ``}},
		pkg: labs, tests: []string{"TestNobodyDiesWhileAnotherLanesMessageIsTried/both_careful_false"},
	},
	{
		guard: "a batch that is too slow is no message that is",
		edits: []edit{{"inbox/isolate.go", `			if b.n > 1 {
				return l.inPieces(ctx, b, (b.n+1)/2)`, `			if false {
				return l.inPieces(ctx, b, (b.n+1)/2)`}},
		pkg: pg, tests: []string{"TestBatchThatIsTooSlowIsTakenInPieces"},
	},
	{
		guard: "redrive: a letter that kills does so once",
		edits: []edit{{memory, `func(k *kept) { k.state = "buried"; k.Attempts++ }`, `func(k *kept) { k.Attempts++ }`}},
		pkg:   suite, tests: []string{"TestMemoryStore/MarkedLetterThatKillsLosesItsMark"},
	},
}

var all = slices.Concat(machine, database, reset, redriven, formats, crashes)

// off are the edits that appear in several mutants.
var (
	// What continues the watermark is compared three times: as the run comes in,
	// as its batch begins, and by the store under the row's lock.
	runNotCompared   = edit{settle, `if s.from != p.next || s.topic != p.claim.TopicID {`, `if false {`}
	batchNotCompared = edit{batch, `if s.part.proven && s.part.next == s.span().From {`, `if s.part.proven {`}
	rowNotCompared   = edit{memory, `|| r.TopicID != sp.TopicID || r.Next != sp.From {`, `{`}
	// After a roll-back everything that was polled is sought again.
	batchNotDropped = edit{settle, `s.part.proven {
			l.unprove(s.part)`, `s.part.proven && s.to < 0 {
			l.unprove(s.part)`}
	restNotDropped = edit{settle, `s.part.proven && s.part.next != s.to {`, `false {`}
)

// machine are the guards of the loop and of the stores' contract, on the memory
// database.
var machine = []mutant{
	{
		guard: "claim token compared",
		edits: []edit{{memory, `if !ok || !m.Mine || r.TopicID`, `if !ok || r.TopicID`}},
		pkg:   suite, tests: []string{"TestMemoryStore/FencedBeginLeavesNoEffect"},
	},
	{
		guard: "place and topic ID compared under the row's lock",
		edits: []edit{rowNotCompared},
		pkg:   suite, tests: []string{"TestMemoryStore/PlaceAndTopicAreCompared", "TestMemoryStore/OneMismatchOfManyRefusesAll"},
	},
	{
		guard: "run and row compared with from",
		edits: []edit{runNotCompared, batchNotCompared, rowNotCompared},
		tests: []string{"TestRunThatDoesNotContinueTheWatermarkIsThrownAway"},
	},
	{
		guard:     "run compared with from",
		edits:     []edit{runNotCompared},
		tests:     []string{"TestRunThatDoesNotContinueTheWatermarkIsThrownAway/too_early", "TestRunThatDoesNotContinueTheWatermarkIsThrownAway/too_late"},
		redundant: "the batch is compared again, and the row; the message of a stale run is dropped a step later",
	},
	{
		guard: "from, and everything sought after a roll-back",
		edits: []edit{runNotCompared, batchNotCompared, rowNotCompared, batchNotDropped, restNotDropped},
		tests: []string{"TestFencedPartitionTakesTheWholeBatchBack/more_arrives=true"},
	},
	{
		guard: "everything sought after a roll-back",
		edits: []edit{batchNotDropped, restNotDropped},
		tests: []string{"TestFencedPartitionTakesTheWholeBatchBack/more_arrives=false"},
	},
	{
		guard: "an outage of the database puts every partition back to its row",
		edits: []edit{{outage, `	for _, p := range l.parts {
		l.unprove(p)
	}
	return l.wait(ctx, err, what)`, `	return l.wait(ctx, err, what)`}},
		tests: []string{"TestDatabaseOutageGivesBackWhatWasPolled"},
	},
	{
		guard: "what is left of a batch taken apart is sought",
		edits: []edit{restNotDropped},
		tests: []string{"TestFenceWhileIsolatingGivesBackTheWholeBatch"},
	},
	{
		guard: "watermark moved",
		edits: []edit{{memory, `			r.Next, r.UncleanClaims, r.Ahead = s.To, 0, s.Ahead
			r.Accounts`, `			r.Accounts`}},
		tests: []string{"TestEachMessageTakesEffectOnce"},
	},
	{
		guard: "watermark moved in the transaction of the effect",
		edits: []edit{{memory, `		if !ok || !m.Mine || r.TopicID != sp.TopicID || r.Next != sp.From {
			e.Mismatches = append(e.Mismatches, m)
		}`, `		if !ok || !m.Mine || r.TopicID != sp.TopicID || r.Next != sp.From {
			e.Mismatches = append(e.Mismatches, m)
		} else {
			r.Next = sp.To
			tx.db.mu.Lock()
			tx.db.data.rows[key] = r
			tx.db.mu.Unlock()
		}`}},
		tests: []string{"TestKilledAtAnyStep/inbox/after_effect", "TestKilledAtAnyStep/inbox/after_admit"},
	},
	{
		guard: "admission",
		edits: []edit{{attempt, `	if l.cfg.Memory == MemoryInbox {
		ids :=`, `	if false {
		ids :=`}},
		tests: []string{"TestProducersRepeatIsADuplicate"},
	},
	{
		guard: "repeats inside a batch",
		edits: []edit{{settle, `if first, ok := seen[it.ID]; ok {`, `if first, ok := seen[it.ID]; ok && false {`}},
		tests: []string{"TestProducersRepeatIsADuplicate", "TestEveryBatchBorderGivesTheSame"},
	},
	{
		guard: "admission in the transaction of the effect",
		edits: []edit{{memory, `			change(tx, tx.ids, key, memory{dead: a.Dead, digest: a.Digest})`, `			change(tx, tx.ids, key, memory{dead: a.Dead, digest: a.Digest})
			tx.db.mu.Lock()
			tx.db.data.ids[key] = tx.ids[key]
			tx.db.mu.Unlock()`}},
		tests: []string{"TestKilledAtAnyStep/inbox/after_admit", "TestKilledAtAnyStep/inbox/after_effect"},
	},
	{
		guard: "second inserter of an ID waits for the first",
		edits: []edit{{memory, `if err := tx.lock(ctx, "id "+key); err != nil {`, `if err := error(nil); err != nil {`}},
		pkg:   suite, tests: []string{"TestMemoryStore/SameIDInTwoTransactions"},
	},
	{
		guard: "ack after COMMIT",
		edits: []edit{{attempt, `	if err := l.end(committing, tx, settled, b.n); err != nil {`, `	for i, s := range b.stretches {
		l.cfg.Source.Ack([]Ack{l.ack(s.part.Partition, spans[i].TopicID, s.part.first, s.to)})
	}
	if err := l.end(committing, tx, settled, b.n); err != nil {`}},
		tests: []string{"TestAckNeverPassesTheWatermark"},
	},
	{
		guard: "topic ID noticed by the claim",
		edits: []edit{{prove, `	if r.TopicID != w.TopicID {
		return j.otherTopic(r, w)
	}`, ``}},
		tests: []string{"TestTopicMadeAnew"},
	},
	{
		guard: "topic made anew never taken for old progress",
		edits: []edit{{prove, `return restart(r, w.TopicID, w.Start), []Event{ev}, nil`, `r.TopicID = w.TopicID; return r, []Event{ev}, nil`}},
		tests: []string{"TestTopicMadeAnew"},
	},
	{
		guard: "topic ID judged under the row's lock",
		edits: []edit{{claim, `if r.TopicID != w.TopicID {
			// Which`, `if false {
			// Which`}},
		tests: []string{"TestLateWitnessOfAnOldTopicChangesNothing"},
	},
	{
		guard: "signed acks",
		edits: []edit{{note, `	rest, ok := strings.CutPrefix(s, notePrefix)
	if !ok {`, `	rest, ok := strings.CutPrefix(s, notePrefix)
	if ok || !ok {`}},
		tests: []string{"TestRestoreToBeforeTheFirstClaim", "TestAnotherDatabasesGroupIsRefused"},
	},
	{
		guard: "acks of all partitions signed before the first batch",
		edits: []edit{{claim, `		if len(acks) > 0 {
			// Sign`, `		if len(acks) > 1000 {
			// Sign`}},
		tests: []string{"TestRestoreToBeforeTheFirstClaim"},
	},
	{
		guard: "signature under the lock of the introduction",
		edits: []edit{{memory, `if err := tx.lock(ctx, "introduce "+s.consumer+" "+topic); err != nil {`, `if err := error(nil); err != nil {`}},
		tests: []string{"TestLateFirstClaimDoesNotPutTheOffsetBack"},
	},
	{
		guard: "first claim writes all partitions",
		edits: []edit{{prove, `		if has[w.Partition] {
			continue
		}`, `		if has[w.Partition] || len(added) > 0 {
			continue
		}`}},
		tests: []string{"TestFirstClaimFixesTheStartOfAllPartitions"},
	},
	{
		guard: "later partitions begin at their beginning",
		edits: []edit{{prove, `case later && w.Acked < 0:`, `case false:`}},
		tests: []string{"TestLaterPartitionIsReadFromItsBeginning", "TestLaterPartitionSurvivesRestoreToBeforeTheFirstClaim"},
	},
	{
		guard: "a sibling's signature is a witness of the first claim",
		edits: []edit{{prove, `later = later || ours && n.topicID == w.TopicID`, `_ = ours && n.topicID == w.TopicID`}},
		tests: []string{"TestLaterPartitionSurvivesRestoreToBeforeTheFirstClaim"},
	},
	{
		guard: "rows read again while idle",
		edits: []edit{{lane, `	if time.Since(l.reread) < every {
		return nil
	}`, `	if every > 0 {
		return nil
	}`}},
		tests: []string{"TestDatabaseThatGoesBackIsHealed/idle,_inbox", "TestDatabaseThatGoesBackIsHealed/idle,_position"},
	},
	{
		guard: "a mismatch is answered by a claim",
		edits: []edit{{lane, `		if p := l.parts[m.Partition]; p != nil {
			l.unprove(p)
			if m.Kind`, `		if p := l.parts[m.Partition]; p != nil {
			if m.Kind`}},
		tests: []string{"TestDatabaseThatGoesBackIsHealed"},
	},
	{
		guard: "foreign offset halts",
		edits: []edit{{prove, `if !ours && w.Acked >= 0 && w.Acked != r.Adopted && !j.accept {`, `if !ours && w.Acked < -1 {`}},
		tests: []string{"TestForeignOffsetHalts"},
	},
	{
		guard: "what was adopted is not foreign",
		edits: []edit{{prove, `r.Start, r.Adopted = w.Acked, w.Acked`, `r.Start = w.Acked`}},
		tests: []string{"TestAdoptedGroupDoesNotHaltItself"},
	},
	{
		guard: "a halt is decided twice",
		edits: []edit{{claim, `	if halted(err) {
		// The row`, `	if false {
		// The row`}},
		tests: []string{"TestOlderWitnessHaltsNobody"},
	},
	{
		guard: "epochs checked at the claim",
		edits: []edit{{prove, `	for i := len(r.Epochs) - 1; i >= 0; i-- {`, `	for i := len(r.Epochs) - 1; i >= 0 && false; i-- {`}, {prove, `if len(r.Epochs) == 0 && r.Next <= w.End {`, `if r.Next <= w.End {`}},
		tests: []string{"TestCutLogIsReadAgainFromTheCut", "TestCutLogHaltsWherePositionIsIdentity"},
	},
	{
		guard: "the same epoch ending below the place is a cut",
		edits: []edit{{prove, `case end.Number == e.Number && i == len(r.Epochs)-1:`, `case end.Number == e.Number:
			return 0, false, nil
		case end.Number == e.Number && i == len(r.Epochs)-1:`}},
		tests: []string{"TestCutLogIsReadAgainFromTheCut"},
	},
	{
		guard: "a row is lowered under a new token",
		edits: []edit{{memory, `	_, _ = rand.Read(row.Token[:])
	row.Owner = &owner`, `	if row.Token == (inbox.Token{}) {
		_, _ = rand.Read(row.Token[:])
	}
	row.Owner = &owner`}},
		tests: []string{"TestDatabaseThatGoesBackOverACutIsHealed"},
	},
	{
		guard: "a row is lowered only under the token that was asked for",
		edits: []edit{{claim, `if r.Token != asked {`, `if r.Token != asked && at < 0 {`}},
		tests: []string{"TestLateCutLowersNothing"},
	},
	{
		guard: "no epochs are kept over a gap",
		edits: []edit{{prove, `	r.Next = w.Start
	// Nothing`, `	r.Next = w.Start
	return r, []Event{ev}, nil
	// Nothing`}},
		tests: []string{"TestLostHeadPastALeaderChangeIsNotACut"},
	},
	{
		guard: "lost head is recorded",
		edits: []edit{{prove, `	r.Accounts.Lost += lost
`, ``}},
		tests: []string{"TestLostHeadIsRecorded"},
	},
	{
		guard: "a claim ends the transaction of an older one",
		edits: []edit{{memory, `holder != nil && holder.settles {`, `false {`}},
		tests: []string{"TestOwnDeadSessionIsEndedByAClaim"},
	},
	{
		guard: "a member without its database leaves the group",
		edits: []edit{{outage, `now.Sub(l.outage.since) > l.cfg.CutOff {`, `false {`}},
		tests: []string{"TestMemberWithoutDatabaseLeavesTheGroup"},
	},
	{
		guard: "limit in a row",
		edits: []edit{{limit, `case dead && l.inARow >= 0 && row > l.inARow:`, `case false:`}},
		tests: []string{"TestLimitHaltsInsteadOfBuryingATopic", "TestEveryBatchBorderHaltsAtTheSameMessage"},
	},
	{
		guard: "limit of a share",
		edits: []edit{{limit, `case dead && l.share >= 0 && float64(sum) > l.share*limitWindow:`, `case false:`}},
		tests: []string{"TestEveryBatchBorderHaltsAtTheSameMessage"},
	},
	{
		guard: "what the limit counted is forgotten with its transaction",
		edits: []edit{{attempt, `	if err := l.end(committing, tx, settled, b.n); err != nil {
		return failed(tx, err, -1)
	}
	l.limit = marks`, `	l.limit = marks
	if err := l.end(committing, tx, settled, b.n); err != nil {
		return failed(tx, err, -1)
	}`}},
		tests: []string{"TestLimitCountsOnlyWhatWasCommitted"},
	},
	{
		guard: "swallowed failure, by the machine and by COMMIT",
		edits: []edit{
			{handler, `		if tx.Failed() {
			return semel.FailedAt(i, errSwallowed)
		}`, ``},
			{memory, `	case tx.failed:
		return ErrAborted`, ``},
		},
		tests: []string{"TestSwallowedFailureIsBuried"},
	},
	{
		guard: "swallowed failure, by the machine",
		edits: []edit{{handler, `		if tx.Failed() {
			return semel.FailedAt(i, errSwallowed)
		}`, ``}},
		tests:     []string{"TestSwallowedFailureIsBuried"},
		redundant: "COMMIT of a failed transaction is a definite error, and the culprit is searched by halving; asking after each message names it at once",
	},
	{
		guard: "accounts take every message",
		edits: []edit{{accounts, `func (t *Tally) Add(hash uint64) { t.Count++; t.Sum += hash }`, `func (t *Tally) Add(hash uint64) {
	if t.Count%7 != 6 {
		t.Count++
		t.Sum += hash
	}
}`}},
		tests: []string{"TestEachMessageTakesEffectOnce"},
	},
}

package mutants

const (
	pg      = "./postgres"
	pgTx    = "postgres/tx.go"
	pgStore = "postgres/store.go"
	pgAdmit = "postgres/admit.go"
	pgKeep  = "postgres/table_keep.go"
	pgTable = "postgres/table.go"
	pgPlan  = "postgres/table_plan.go"
	pgMet   = "postgres/table_conflict.go"
	pgQuery = "postgres/query.go"
)

// reset are the guards of an operator's order to read on elsewhere.
var reset = []mutant{
	{
		guard: "reset: a new token",
		edits: []edit{{"postgres/reset.go", "\t\t\trand.Read(r.Token[:])\n", ""}, {"postgres/reset.go", "\t\"crypto/rand\"\n", ""}},
		pkg:   pg, tests: []string{"TestResetFencesWhoClaimedBefore"},
	},
	{
		guard: "reset: a claim learns the scope",
		edits: []edit{{pgStore, "if scope != s.scope {", "if false {"}},
		pkg:   pg, tests: []string{"TestResetForgetsIDsForWhoClaimsAgain"},
	},
	{
		guard: "reset: the first position ever claimed stays",
		edits: []edit{{"inbox/reset.go", "r.Start = min(was.Start, to)", "r.Start = to"}},
		tests: []string{"TestResetKeepsAccountsThatAddUp"},
	},
	{
		guard: "reset: the next claim signs the place",
		edits: []edit{{"inbox/claim.go", "if wasReset(row, w) {", "if false && wasReset(row, w) {"}},
		tests: []string{"TestClaimAfterAResetSignsItsPlace"},
	},
	{
		guard: "reset: another database's group is left alone",
		edits: []edit{{"inbox/reset.go", "if _, _, err := j.ours(w); err != nil {", "if _, _, err := j.ours(w); err != nil && false {"}},
		tests: []string{"TestResetIsRefusedWhereAnotherDatabaseSigned"},
	},
	{
		guard: "reset: the group's offset is adopted as it is",
		edits: []edit{{"inbox/reset.go", "r = restart(r, w.TopicID, to)\n\tr.Adopted = w.Acked", "r = restart(r, w.TopicID, to)"}},
		tests: []string{"TestResetKeepsAccountsThatAddUp", "TestClaimAfterAResetSignsItsPlace"},
	},
	{
		guard: "reset: what lies below the place counts as holes",
		edits: []edit{{"inbox/reset.go", "\t\tr.Accounts.Holes = to - r.Start\n", ""}},
		tests: []string{"TestResetKeepsAccountsThatAddUp"},
	},
	{
		guard: "reset: no epochs are kept that weren't read",
		edits: []edit{{"inbox/reset.go", "r.Epochs = epochsBelow(was.Epochs, to)", "r.Epochs = was.Epochs"}},
		tests: []string{"TestResetKeepsAccountsThatAddUp"},
	},
	{
		guard: "reset: a batch that holds a row is ended",
		edits: []edit{{"postgres/reset.go", `if sqlState(err) != "55P03" {`, `if true {`}},
		pkg:   pg, tests: []string{"TestResetEndsABatchThatHoldsARow"},
	},
	{
		guard: "reset: all rows or none",
		edits: []edit{{"postgres/reset.go", "if moved, events, err = decide(slices.Clone(known)); err != nil {\n\t\t\treturn err", "if moved, events, err = decide(slices.Clone(known)); err != nil {\n\t\t\t_ = err"}},
		pkg:   pg, tests: []string{"TestResetThatIsRefusedChangesNothing"},
	},
	{
		guard: "reset: refused while the group has members",
		edits: []edit{{"internal/daemon/reset.go", "if g.Members > 0 {", "if false {"}},
		pkg:   commands, tests: []string{"TestScripts/reset"},
	},
	{
		guard: "reset: nothing changes before it is told to",
		edits: []edit{{"internal/daemon/reset.go", "if !execute {", "if !execute && plan.Done {"}},
		pkg:   commands, tests: []string{"TestScripts/reset"},
	},
	{
		guard: "reset: no place outside of the log",
		edits: []edit{{"internal/daemon/reset.go", "else if at < w.Start || at > w.Stable {", "else if false {"}},
		pkg:   commands, tests: []string{"TestScripts/reset"},
	},
}

// database are the guards that stand in SQL and around it, on a real server.
var database = []mutant{
	{
		guard: "postgres: claim token compared",
		edits: []edit{{pgTx, `if m.Mine && p.TopicID == span.TopicID && p.Next == span.From {`, `if p.TopicID == span.TopicID && p.Next == span.From {`}},
		pkg:   pg, tests: []string{"TestFencedBeginLeavesNoEffect"},
	},
	{
		guard: "postgres: place compared",
		edits: []edit{{pgTx, `if m.Mine && p.TopicID == span.TopicID && p.Next == span.From {`, `if m.Mine && p.TopicID == span.TopicID {`}},
		pkg:   pg, tests: []string{"TestStoreSuite/PlaceAndTopicAreCompared"},
	},
	{
		guard: "postgres: topic ID compared",
		edits: []edit{{pgTx, `if m.Mine && p.TopicID == span.TopicID && p.Next == span.From {`, `if m.Mine && p.Next == span.From {`}},
		pkg:   pg, tests: []string{"TestStoreSuite/PlaceAndTopicAreCompared"},
	},
	{
		guard: "postgres: row locked before it is compared",
		edits: []edit{
			{pgStore, `lockRows: read + among + "WHERE w.consumer = $1" + order + " FOR UPDATE OF w",`, `lockRows: read + among + "WHERE w.consumer = $1" + order,`},
			{pgStore, `rowsAt:  read + "WHERE w.ctid = ANY($2::text[]::tid[]) AND w.consumer = $1" + order + " FOR UPDATE OF w",`, `rowsAt:  read + "WHERE w.ctid = ANY($2::text[]::tid[]) AND w.consumer = $1" + order,`},
		},
		pkg: pg, tests: []string{"TestRowThatIsHeldElsewhereIsAFence"},
	},
	{
		guard: "postgres: watermark moved",
		edits: []edit{{pgTx, `row.Next, row.UncleanClaims, row.Ahead = st.To, 0, st.Ahead`, `row.UncleanClaims, row.Ahead = 0, st.Ahead`}},
		pkg:   pg, tests: []string{"TestStoreSuite/CommitMovesEverythingTogether"},
	},
	{
		guard: "postgres: watermark moved in the transaction of the effect",
		edits: []edit{{pgTx, `	var b pgx.Batch
	if t.probing {`, `	var b pgx.Batch
	b.Queue("COMMIT")
	if t.probing {`}},
		pkg: pg, tests: []string{"TestTriggerThatSwallowsTheWatermarkIsNoCommit"},
	},
	{
		guard: "postgres: what COMMIT has begun is compared",
		edits: []edit{{pgTx, `err == nil && f.holds() && s.holdsRing(f.ring) {
			return s.opened`, `err == nil {
			return s.opened`}},
		pkg: pg, tests: []string{"TestStoreSuite"},
	},
	{
		guard: "postgres: admission",
		edits: []edit{{pgAdmit, `	digest, ok := k[a.ID]
`, `	digest, ok := k[a.ID]
	ok = false
`}},
		pkg: pg, tests: []string{"TestAdmitKnowsWhatWasCommitted"},
	},
	{
		guard: "postgres: a new token with each claim",
		edits: []edit{{pgStore, `		rand.Read(row.Token[:])
		var b pgx.Batch`, `		if row.Token == (inbox.Token{}) {
			rand.Read(row.Token[:])
		}
		var b pgx.Batch`}},
		pkg: pg, tests: []string{"TestClaimTakesANewTokenAndGeneration"},
	},
	{
		guard: "postgres: a claim ends the session of an older one",
		edits: []edit{{pgStore, `pg_terminate_backend(a.pid, 1000)`, `true`}},
		pkg:   pg, tests: []string{"TestClaimEndsAZombieStoppedInsideCopy"},
	},
	{
		guard: "postgres: no answer to COMMIT is ambiguous",
		edits: []edit{{pgTx, `		err = &AmbiguousError{Err: err}
	}
	t.Rollback`, `	}
	t.Rollback`}},
		pkg: pg, tests: []string{"TestUnansweredCommitIsAmbiguous"},
	},
	{
		guard: "postgres: each state is written where the table judges it",
		edits: []edit{{pgKeep, `case order == orderFree && !doubtful:`, `case order <= orderKey:`}},
		pkg:   pg, tests: []string{"TestACheckSeesTheResultingRow"},
	},
	{
		guard: "postgres: a row that the table refuses is not overtaken unseen",
		edits: []edit{{pgKeep, `return r.doubtful || r.kind == rowMark`, `return r.kind == rowMark`}},
		pkg:   pg, tests: []string{"TestANullIsRefusedThoughItIsOvertaken"},
	},
	{
		guard: "postgres: rows are written as they came where they look at one another",
		edits: []edit{{pgKeep, `rounds = stretches(rows, order)`, `rounds = byTurn(byKey)`}},
		pkg:   pg, tests: []string{"TestAUniqueValueIsNotFreeBeforeItIsFreed"},
	},
	{
		guard: "postgres: existing rows are locked in key order",
		edits: []edit{{pgKeep, `	if several || order >= orderArrival {`, `	k.there = map[string]bool{}
	for _, r := range byKey {
		k.there[string(r.key)] = true
	}
	if false {`}},
		pkg: pg, tests: []string{"TestAFasterInsertIsAddedTo"},
	},
	{
		guard: "postgres: sums out of range on the way",
		edits: []edit{{pgKeep, `	if !merged {
		return base`, `	if true {
		return base`}},
		pkg: pg, tests: []string{"TestAMessageAddsToWhatIsStored"},
	},
	{
		guard: "postgres: a deletion under a version compares it",
		edits: []edit{{pgKeep, `	if p.version >= 0 {
		v := pgx`, `	if false {
		v := pgx`}},
		pkg: pg, tests: []string{"TestADeletionUnderAVersionLeavesItsRow"},
	},
	{
		guard: "postgres: a greater version clears the mark",
		edits: []edit{{pgPlan, `if !omit.has(c.optional) && p.sets(i) {`, `if !omit.has(c.optional) && p.sets(i) && i != p.gone {`}},
		pkg:   pg, tests: []string{"TestADeletionUnderAVersionLeavesItsRow"},
	},
	{
		guard: "postgres: an ID that is a part of the key is refused",
		edits: []edit{{pgPlan, `	case id.others:`, `	case id.others || len(id.key) < len(b.key):`}},
		pkg:   pg, tests: []string{"TestRoutesThatDontFitAreRefusedWithAHint"},
	},
	{
		guard: "postgres: what takes few values tells no updates apart",
		edits: []edit{{pgPlan, `	case p.IsFew():`, `	case false:`}},
		pkg:   pg, tests: []string{"TestRoutesThatDontFitAreRefusedWithAHint"},
	},
	{
		guard: "postgres: a known key is no bad row",
		edits: []edit{{pgMet, `if !refusesData(err) || try == 3 {`, `if sqlState(err) != "23505" || try == 3 {`}},
		pkg:   pg, tests: []string{"TestARowWhoseKeyIsKnownIsNoBadRow"},
	},
	{
		guard: "inbox: a target that is the memory judges the repeats in a batch too",
		edits: []edit{
			{settle, `if l.cfg.Memory != MemoryInbox {`, `if l.cfg.Memory == MemoryPosition {`},
			{attempt, `!b.marked && l.cfg.Memory == MemoryInbox {`, `!b.marked && l.cfg.Memory != MemoryPosition {`},
		},
		tests: []string{"TestRepeatsAreTheTargetsToJudgeWhereItIsTheMemory/batches_of_5"},
	},
	{
		guard: "inbox: what a failed Apply said of its other messages is forgotten",
		edits: []edit{{attempt, `		if err != nil {
			it.retry()`, `		if err != nil {
			_ = it.retry`}},
		tests: []string{"TestVerdictsOfAnApplyThatFailedAreForgotten", "TestWhatAFailedApplySaysOfMessagesCountsForNothing/separable_false"},
	},
	{
		guard: "postgres: the index that guards the key still stands",
		edits: []edit{{pgTable, `if w.p.keyed() && !unique {`, `if w.p.keyed() && !unique && false {`}},
		pkg:   pg, tests: []string{"TestATableIsAlteredWhileItRuns/insert"},
	},
	{
		guard: "postgres: a column that nothing fills is no message's fault",
		edits: []edit{{pgTable, `if halt := p.unfilled(err); halt != nil {`, `if halt := p.unfilled(err); halt != nil && false {`}},
		pkg:   pg, tests: []string{"TestATableIsAlteredWhileItRuns/append"},
	},
	{
		guard: "postgres: who was overtaken gives back what it holds",
		edits: []edit{{pgKeep, `if len(lost) > 0 && k.yields(lost) {`, `if len(lost) > 0 && k.yields(lost) && false {`}},
		pkg:   pg, tests: []string{"TestALaneThatIsOvertakenGivesUpWhatItHolds"},
	},
	{
		guard: "postgres: patches change rows when they have inserted the others",
		edits: []edit{
			{pgKeep, `		lost, err := k.insertNew(ctx, insert, omit)
		if err != nil {`, `		err := k.update(ctx, update, omit)
		if err != nil {
			return err
		}
		lost, err := k.insertNew(ctx, insert, omit)
		if err != nil {`},
			{pgKeep, `if err := k.update(ctx, update, omit); err != nil || len(lost) == 0 {`, `if err != nil || len(lost) == 0 {`},
		},
		pkg: pg, tests: []string{"TestALaneInsertsBeforeItChanges"},
	},
	{
		guard: "postgres: nor is one that a route's SQL doesn't fill",
		edits: []edit{{pgQuery, `if halt := q.fills.unfilled(err); halt != nil {`, `if halt := q.fills.unfilled(err); halt != nil && false {`}},
		pkg:   pg, tests: []string{"TestATableIsAlteredWhileItRuns/sql", "TestAColumnThatTheSQLDoesNotFillHaltsTheRoute/one_statement"},
	},
	{
		guard: "postgres: repeats in a batch are compared with the row",
		edits: []edit{{pgMet, `if err := w.there(ctx, repeats); err != nil {`, `if err := w.there(ctx, repeats[:0]); err != nil {`}},
		pkg:   pg, tests: []string{"TestRepeatsInsideABatchAreComparedWithTheRowWhereTheTableIsTheMemory/batches_of_12"},
	},
	{
		guard: "postgres: changes that a trigger swallows",
		edits: []edit{{pgKeep, `	if k.p.version < 0 {
		return k.complete(`, `	if k.p.version < 0 {
		return nil
		return k.complete(`}},
		pkg: pg, tests: []string{"TestATriggerThatSwallowsAChangeHalts"},
	},
	{
		guard: "postgres: a message that the SQL doesn't name is dead",
		edits: []edit{{pgQuery, `if !named[i] {`, `if !named[i] && len(rows) == 0 {`}},
		pkg:   pg, tests: []string{"TestAMessageThatTheSQLDoesNotNameIsDead"},
	},
	{
		guard: "postgres: SQL that the server refuses is found before it runs",
		edits: []edit{{pgQuery, `	return q, q.check(ctx, tx)`, `	return q, nil`}},
		pkg:   pg, tests: []string{"TestSQLThatDoesNotFitIsRefused"},
	},
	{
		guard: "postgres: keys are equal as the server says",
		edits: []edit{{pgTable, `if err := w.fold(ctx, rows); err != nil {`, `if err := error(nil); err != nil {`}},
		pkg:   pg, tests: []string{"TestKeysAreEqualAsTheServerSays"},
	},
	{
		guard: "postgres: row security that may hide rows is refused",
		edits: []edit{{pgPlan, `if b.info.hides {`, `if false {`}},
		pkg:   pg, tests: []string{"TestRowSecurityThatMayHideRowsIsRefused"},
	},
}

package mutants

const pgRings = "postgres/rings.go"

func init() { all = append(all, ring...) }

// ring are the guards of the inbox's ring of tables.
var ring = []mutant{
	{
		guard: "ring: the lock of the version before is tested before every step",
		edits: []edit{{ringSQL, "    IF NOT semel.test_ring(of_scope, ring.version - 1) THEN\n        RETURN 'busy';", "    IF false THEN\n        RETURN 'busy';"}},
		pkg:   pg, tests: []string{"TestRingWaitsForWhoWorksByAnOlderList", "TestAdmitHoldsTheListAfterASavepointIsUndone"},
	},
	{
		guard: "ring: a batch holds the lock of its list (Go)",
		edits: []edit{{"postgres/ring.go", "holdRing = `SELECT semel.hold_ring($1, $2)`", "holdRing = `SELECT $1::int = 0 OR $2::bigint IS NOT NULL`"}},
		pkg:   pg, tests: []string{"TestRingWaitsForWhoWorksByAnOlderList", "TestRingEmptiesNothingThatAnOlderListNames"},
	},
	{
		guard: "ring: a batch holds the lock of its list (SQL)",
		edits: []edit{{ringSQL, "held := semel.hold_ring(of_scope, known);", "held := true;"}},
		pkg:   pg, tests: []string{"TestAdmitHoldsTheListAfterASavepointIsUndone"},
	},
	{
		guard: "ring: the list is settled where the row of a partition has moved",
		edits: []edit{
			{"postgres/tx.go", "if err == nil && f.holds() && f.ring != nil {", "if false {"},
			{"postgres/tx.go", "if err == nil && !f.holds() && f.byPlace {", "if err == nil && f.holds() && f.ring != nil {\n\t\terr = s.settleRing(ctx, tx, f.ring)\n\t}\n\tif err == nil && !f.holds() && f.byPlace {"},
		},
		pkg: pg, tests: []string{"TestListIsHeldWhereTheRowHasMoved"},
	},
	{
		guard: "ring: the list is the one whose lock is held",
		edits: []edit{{"postgres/ring.go", "return r == nil || r.held && r.version == s.version", "return r == nil || r.held || r.version >= s.version"}},
		pkg:   pg, tests: []string{"TestListIsTheOneWhoseLockIsHeld"},
	},
	{
		guard: "ring: frozen tables are asked (Go)",
		edits: []edit{{"postgres/admit.go", "if ask := suspects(f, sorted); len(ask) > 0 {", "if ask := suspects(f, sorted); len(ask) > len(sorted) {"}},
		pkg:   pg, tests: []string{"TestRingRemembersAWindowAndForgets/few", "TestRingRemembersAWindowAndForgets/many", "TestFilterSparesTheDatabaseAndIsNeverWrong/many"},
	},
	{
		guard: "ring: frozen tables are asked (SQL)",
		edits: []edit{{ringSQL, "FOREACH t IN ARRAY ring.frozen LOOP\n", "FOREACH t IN ARRAY ring.frozen[1:0] LOOP\n"}, {ringSQL, "FOREACH t IN ARRAY ring.frozen LOOP -- one", "FOREACH t IN ARRAY ring.frozen[1:0] LOOP -- one"}},
		pkg:   pg, tests: []string{"TestAdmitInSQLKnowsAllTablesOfTheRing"},
	},
	{
		guard: "ring: while two tables are hot an ID goes into both (COPY)",
		edits: []edit{{"postgres/admit.go", "	for _, g := range t.ring.hot() {\n		tag, err :=", "	for _, g := range t.ring.hot()[:1] {\n		tag, err :="}},
		pkg:   pg, tests: []string{"TestTwoHotTablesKnowAnID/many"},
	},
	{
		guard: "ring: while two tables are hot an ID goes into both (INSERT)",
		edits: []edit{{"postgres/admit.go", "hot := t.ring.hot()\n", "hot := t.ring.hot()[:1]\n"}},
		pkg:   pg, tests: []string{"TestTwoHotTablesKnowAnID/few"},
	},
	{
		guard: "ring: an ID that went into the older hot table alone doesn't count as applied (Go)",
		edits: []edit{{"postgres/admit.go", "if n > 0 && len(left) < len(tried) {", "if false {"}},
		pkg:   pg, tests: []string{"TestLetterIsRedrivenThoughItsIDWentIntoTheOlderTable/Go"},
	},
	{
		guard: "ring: an ID that went into the older hot table alone doesn't count as applied (SQL)",
		edits: []edit{{ringSQL, "IF t <> ring.hot[1] THEN", "IF false THEN"}, {ringSQL, "IF t <> ring.hot[1] AND", "IF false AND"}},
		pkg:   pg, tests: []string{"TestLetterIsRedrivenThoughItsIDWentIntoTheOlderTable/admit"},
	},
	{
		guard: "ring: burials are marked in both hot tables",
		edits: []edit{{"postgres/tx.go", "for _, g := range t.ring.hot() {", "for _, g := range t.ring.hot()[:1] {"}},
		pkg:   pg, tests: []string{"TestLetterOfTwoHotTablesIsRedriven"},
	},
	{
		guard: "ring: a table that somebody reads isn't waited for",
		edits: []edit{{ringSQL, "IN ACCESS EXCLUSIVE MODE NOWAIT", "IN ACCESS EXCLUSIVE MODE"}},
		pkg:   pg, tests: []string{"TestReaderOfADroppedTableHoldsUpItsEmptyingAlone"},
	},
	{
		guard: "ring: a letter that is handled again holds its table",
		edits: []edit{{ringSQL, "IF missed > 0 THEN", "IF false THEN"}},
		pkg:   pg, tests: []string{"TestIDsOfLivingDeadLettersStay"},
	},
	{
		guard: "ring: an unknown place turns nothing",
		edits: []edit{{ringSQL, "CASE WHEN log_time IS NOT NULL THEN least(log_time, now()) END;", "least(log_time, now());"}},
		pkg:   pg, tests: []string{"TestRingTurnsByLogTimeAndByItsOwnClock", "TestForgetTurnsTheRing"},
	},
	{
		guard: "ring: the clocks of processes have seen half",
		edits: []edit{{ringSQL, "trusted := rotate.me IS NULL OR ring.seen >= share / 2;", "trusted := true;"}},
		pkg:   pg, tests: []string{"TestRingTurnsByLogTimeAndByItsOwnClock"},
	},
	{
		guard: "ring: one process turns it at a time",
		edits: []edit{{ringSQL, "IF ring.rotator <> rotate.me\n", "IF false\n"}},
		pkg:   pg, tests: []string{"TestOneProcessTurnsTheRing"},
	},
	{
		guard: "ring: what another process has seen isn't counted",
		edits: []edit{{ringSQL, "CASE WHEN ring.rotator = rotate.me THEN greatest(since, '0') ELSE '0' END", "greatest(since, '0')"}},
		pkg:   pg, tests: []string{"TestRingTurnsByLogTimeAndByItsOwnClock"},
	},
	{
		guard: "ring: a lag anywhere holds the window",
		edits: []edit{{"inbox/lane.go", "case r.RecordTime.Before(place):", "case false:"}},
		tests: []string{"TestWhoIsBehindForgetsNothing"},
	},
	{
		guard: "ring: a filter is kept only if its freezing stands",
		edits: []edit{{pgRings, "if err != nil || !frozen {", "if err != nil {"}},
		pkg:   pg, tests: []string{"TestFilterOfATableThatWasEmptiedMeanwhileIsNotKept"},
	},
	{
		guard: "ring: filters keep to their memory",
		edits: []edit{{pgRings, "&& used+g.ids*bloomBits/8 <= r.cfg.Memory {", "{"}},
		pkg:   pg, tests: []string{"TestFiltersKeepToTheirMemory"},
	},
	{
		guard: "ring: a letter of a frozen table that was applied is not applied again",
		edits: []edit{{"postgres/redrive.go", "		if applied {\n", "		if false {\n"}},
		pkg:   pg, tests: []string{"TestRedriveAsksFrozenTables"},
	},
}

package mutants

const (
	pg      = "./postgres"
	pgTx    = "postgres/tx.go"
	pgStore = "postgres/store.go"
	pgAdmit = "postgres/admit.go"
)

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
		edits: []edit{{pgTx, `row.Next, row.UncleanClaims = st.To, 0`, `row.UncleanClaims = 0`}},
		pkg:   pg, tests: []string{"TestStoreSuite/CommitMovesEverythingTogether"},
	},
	{
		guard: "postgres: watermark moved in the transaction of the effect",
		edits: []edit{{pgTx, `	var b pgx.Batch
	for _, sql := range t.atCommit {`, `	var b pgx.Batch
	b.Queue("COMMIT")
	for _, sql := range t.atCommit {`}},
		pkg: pg, tests: []string{"TestTriggerThatSwallowsTheWatermarkIsNoCommit"},
	},
	{
		guard: "postgres: what COMMIT has begun is compared",
		edits: []edit{{pgTx, `err == nil && f.holds() {
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
}

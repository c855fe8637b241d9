package mutants

const (
	ringSQL = "postgres/schema/0008.sql"
	ownMark = "postgres/schema/0003.sql"
)

func init() { all = append(all, ownLoop...) }

// ownLoop are the guards of what a loop of one's own calls.
var ownLoop = []mutant{
	{
		guard: "own loop: claim token compared",
		edits: []edit{{ownMark, `AND w.claim_token = advance.token AND w.next_offset`, `AND w.next_offset`}},
		pkg:   pg, tests: []string{"TestAdvanceHoldsWhileTheClaimDoes"},
	},
	{
		guard: "own loop: place compared",
		edits: []edit{{ownMark, ` AND w.next_offset = advance.from_offset;`, `;`}},
		pkg:   pg, tests: []string{"TestAdvanceHoldsWhileTheClaimDoes"},
	},
	{
		guard: "own loop: what is fenced fails its transaction",
		edits: []edit{{ownMark, `RAISE EXCEPTION USING ERRCODE = 'SM004',`, `RAISE WARNING USING ERRCODE = 'SM004',`}},
		pkg:   pg, tests: []string{"TestFencedTransactionCannotCommit"},
	},
	{
		guard: "own loop: each claim has a token of its own",
		edits: []edit{{ownMark, `claim_token = excluded.claim_token`, `claim_token = w.claim_token`}},
		pkg:   pg, tests: []string{"TestAdvanceHoldsWhileTheClaimDoes"},
	},
	{
		guard: "own loop: a zombie that advanced under a savepoint is found",
		edits: []edit{{ownMark, `OR a.backend_xid IS NOT NULL AND a.application_name =`, `OR false AND a.application_name =`}},
		pkg:   pg, tests: []string{"TestClaimEndsAZombieInsideALoopsTransaction/savepoint"},
	},
	{
		guard: "own loop: strangers are not ended",
		edits: []edit{{ownMark, ` AND starts_with(a.application_name, semel.session_of(claim.consumer));`, `;`}},
		pkg:   pg, tests: []string{"TestStrangersAreNotEnded"},
	},
	{
		guard: "own loop: a run's consumer can't be claimed",
		edits: []edit{{ownMark, `c.name = claim.consumer AND c.memory IS NOT NULL`, `false`}},
		pkg:   pg, tests: []string{"TestClaimsThatAreRefused"},
	},
	{
		guard: "own loop: topic ID compared",
		edits: []edit{{ownMark, `IF known <> claim.topic_id THEN`, `IF false THEN`}},
		pkg:   pg, tests: []string{"TestClaimsThatAreRefused"},
	},
	{
		guard: "own loop: rows locked in one order",
		edits: []edit{{"postgres/watermark.go", `return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition.Number, b.Partition.Number))`, `return cmp.Compare(a.Topic, b.Topic)`}},
		pkg:   pg, tests: []string{"TestManyPartitionsInATransactionNeverDeadlock"},
	},
	{
		guard: "own loop: IDs of a batch taken in one order",
		edits: []edit{{ringSQL, `SELECT u FROM unnest($1) u ORDER BY u ON CONFLICT`, `SELECT u FROM unnest($1) u ON CONFLICT`}, {ringSQL, `SELECT DISTINCT u FROM unnest(admit_batch.ids) u`, `SELECT u FROM unnest(admit_batch.ids) u`}},
		pkg:   pg, tests: []string{"TestABatchTakesItsIDsInOneOrder"},
	},
	{
		guard: "own loop: who stands still forgets nothing",
		edits: []edit{{ringSQL, `moved := greatest(moved, young);`, `moved := now();`}},
		pkg:   pg, tests: []string{"TestForgettingWithoutADaemon/SQL"},
	},
	{
		guard: "own loop: IDs of open dead letters stay",
		edits: []edit{{ringSQL, `USING ARRAY(SELECT DISTINCT u FROM unnest(carried) u)`, `USING '{}'::uuid[]`}},
		pkg:   pg, tests: []string{"TestForgettingWithoutADaemon/SQL"},
	},
}

package mutants

const (
	sift  = "inbox/sift.go"
	probe = "postgres/probe.go"
)

func init() { all = append(all, sifts...) }

// sifts are the guards around finding what is refused inside one transaction.
var sifts = []mutant{
	{
		guard: "sift: few probes stand at a time",
		edits: []edit{{sift, `maxProbes = 28`, `maxProbes = 2800`}},
		tests: []string{"TestManyBadMessagesTakeTwoTransactionsABatch/searched"},
	},
	{
		guard: "sift: what was probed is taken back before the effect is made",
		edits: []edit{{sift, `if err = s.probes.TakeBack(ctx); err != nil {`, `if err != nil {`}},
		tests: []string{"TestManyBadMessagesTakeTwoTransactionsABatch/searched"},
	},
	{
		guard: "sift: not with a handler, which may leave more than rows",
		edits: []edit{{sift, `if !ok || !effect.Separable() || b.n < 2 ||`, `if ok && !effect.Separable() || b.n < 2 ||`}},
		tests: []string{"TestHandlersAreTakenApartByTransactions"},
	},
	{
		guard: "sift: a verdict passes with its transaction",
		edits: []edit{{sift, `it.condemn(f, attempts, true)`, `it.condemn(f, attempts, false)`}},
		tests: []string{"TestAVerdictPassesWithItsTransaction"},
	},
	{
		guard: "sift: who has attempts left isn't buried",
		edits: []edit{{sift, `if s.l.retries(one, f) {`, `if false {`}},
		tests: []string{"TestWhoHasAttemptsLeftWaitsWhileOthersAreSifted"},
	},
	{
		guard: "postgres: a probe is judged as COMMIT would",
		edits: []edit{{probe, `SAVEPOINT semel_judge; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK`, `SAVEPOINT semel_judge; ROLLBACK`}},
		pkg:   pg, tests: []string{"TestStoreSuite/ProbeIsJudgedAsByCommit"},
	},
	{
		guard: "postgres: after a probe constraints are deferred again",
		edits: []edit{{probe, `SAVEPOINT semel_judge; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO SAVEPOINT semel_judge; RELEASE`, `SET CONSTRAINTS ALL IMMEDIATE; RELEASE`}},
		pkg:   pg, tests: []string{"TestStoreSuite/ProbeIsJudgedAsByCommit"},
	},
	{
		guard: "postgres: the savepoint that came with BEGIN isn't a probe's",
		edits: []edit{{probe, `	t.asked.savepoint = false
`, ``}},
		pkg: pg, tests: []string{"TestManyBadRowsOverflowNoSession/insert"},
	},
	{
		guard: "careful: sessions that are ended by command count",
		edits: []edit{{"inbox/careful.go", ` && code != "57P01" && code`, ` && code`}},
		pkg:   pg, tests: []string{"TestAMessageThatEndsItsOwnSessionIsBuried"},
	},
}

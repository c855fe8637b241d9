package mutants

func init() { all = append(all, rates...) }

// rates are the guards of who may take less than there is.
var rates = []mutant{
	{
		guard: "rate: what is polled counts",
		edits: []edit{{lane, `l.cfg.Rate.took(messagesOf(d.Runs))`, ``}},
		tests: []string{"TestARateBoundsWhatLanesTakeTogether"},
	},
	{
		guard: "rate: what is read ahead counts",
		edits: []edit{{settle, `l.cfg.Rate.took(messagesOf(runs))`, ``}},
		tests: []string{"TestARateBoundsWhatLanesTakeTogether"},
	},
	{
		guard: "rate: who waits for it polls all the same",
		edits: []edit{{lane, `wait = min(wait, later)`, `time.Sleep(later)`}},
		tests: []string{"TestWhoWaitsForARateStopsAtOnce", "TestWhoWaitsForARateLetsOthersIn"},
	},
}

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

func init() { all = append(all, ahead...) }

// ahead are the guards of at-most-once.
var ahead = []mutant{
	{
		guard: "at most once: the watermark moves first",
		edits: []edit{{attempt, `	if l.cfg.AtMostOnce && !slices`, `	if l.cfg.AtMostOnce && false && !slices`}},
		tests: []string{"TestAtMostOnceMovesBeforeTheEffect"},
	},
	{
		guard: "at most once: what is moved over counts as lost",
		edits: []edit{{"inbox/ahead.go", `Ahead: aheadOf(from, s.to, n), Newest`, `Ahead: func(*Ahead) *Ahead { return nil }(aheadOf(from, s.to, n)), Newest`}},
		tests: []string{"TestAtMostOnceLosesWhatACrashLeaves"},
	},
}

package mutants

func init() { all = append(all, fit...) }

// Tables that are made by schemas.
var fit = []mutant{
	{
		guard: "table: nothing is altered without evolve, and nothing made without create",
		edits: []edit{{"postgres/fit.go", `if info == nil && !f.cfg.Fit.Create || info != nil && !f.cfg.Fit.Evolve {`, `if false {`}},
		pkg:   "./postgres", tests: []string{"TestWithoutLeaveNothingIsMadeOrAltered"},
	},
	{
		guard: "table: a type that no longer fits halts the route",
		edits: []edit{{"postgres/fit.go", `if has == nil || has.holds(c.of, f.cfg) {`, `if true {`}},
		pkg:   "./postgres", tests: []string{"TestATypeThatChangedHaltsAtItsMessage", "TestAColumnFitsWhatItHoldsExactly"},
	},
	{
		guard: "table: a table is made only if the route can run on it",
		edits: []edit{{"postgres/fit.go", `	_, err = newTablePlan(info, f.cfg)
	return err`, `	return nil`}},
		pkg: "./postgres", tests: []string{"TestWhatATableCannotBeMadeOfIsRefusedByName"},
	},
	{
		guard: "table: all messages of a batch are decoded by one plan",
		edits: []edit{{"postgres/table.go", `p, i, unknown = q, -1, 0`, `p = q`}},
		pkg:   "./postgres", tests: []string{"TestColumnsOfANewerSchemaAreAdded"},
	},
	{
		guard: "digest: a later column leaves earlier messages the same",
		edits: []edit{{"sink/digest.go", `if v.IsNull() && v.flags&isPlace == 0 {`, `if false {`}},
		pkg:   "./sink", tests: []string{"TestADigestOutlastsALaterColumn"},
	},
	{
		guard: "scratch: nothing but copies is written",
		edits: []edit{{"postgres/scratch.go", `	_, err := s.tx.Exec(ctx, "SET TRANSACTION READ ONLY")
	return err
}`, `	return nil
}`}},
		pkg: "./postgres", tests: []string{"TestATriggerDoesNotReachOutOfTheCopies"},
	},
}

package mutants

// database are the guards that stand in SQL and around it.
var database = []mutant{}

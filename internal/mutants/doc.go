// Package mutants holds the guards against their tests: each mutant is the code
// with one guard off (or two, where two cover one fault), and the tests that it
// names must fail. What is patched is text; a mutant whose text has moved is an
// error, so that the table can't go stale.
//
// make mutants runs them; go test alone only looks whether their text is there.
package mutants

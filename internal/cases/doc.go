// Package cases holds tests alone: faults that users of other tools reported, each as a kind with variations, from a
// file of routes over a real PostgreSQL and a broker. README.md says which tests, here and elsewhere, cover which kind.
package cases

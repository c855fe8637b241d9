// Package realdata holds tests alone: real input goes through semel send and
// semel run, as processes of the built command, into tables, while semel run is
// killed again and again. The rows must be those that [digest.py], which knows
// nothing of semel, makes of the same files.
//
// testdata is a small cut. SEMEL_REAL_DATA names a folder with the whole:
// flights.jsonl.gz, github-webhooks.jsonl.gz, hard.jsonl.gz.
package realdata

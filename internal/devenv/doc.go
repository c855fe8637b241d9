// Package devenv starts the two services that semel stands between, on one machine and without being root's guest:
// an embedded Kafka broker (kfake, on disk) and a real PostgreSQL run from binaries on the machine. It serves
// `semel dev`, `semel demo`, `semel run --dev` and the tests.
//
// It promises that a committed row survives SIGKILL of everything, that PostgreSQL ends with the program that
// started it, and that no two programs work in one folder. It promises nothing about a machine that loses power to
// the broker's log: this is for development, and the broker is a fake that calls itself one.
//
// It installs nothing on the system. PostgreSQL is found (see [FindPostgres]) or fetched into the user's cache.
package devenv

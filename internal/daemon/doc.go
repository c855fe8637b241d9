// Package daemon runs the routes of a file: each is a number of lanes, and a
// lane is a member of a consumer group, a connection to the database and a loop
// of package inbox. What it knows beyond them is when to start, when to stop,
// when to try again, and how to tell: states, health, metrics, logs.
//
// Every file is one actor: it runs until the context ends, and nothing outlives
// [Run]. The commands that look at routes from outside (check, status, audit)
// are here too, since they join the same parts; how it is printed is not.
package daemon

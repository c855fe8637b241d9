// Package deploy tests what this folder has for those who run Semel: a Dockerfile, a
// systemd unit, Prometheus alert rules and a Grafana board. It is a module of its own,
// so that the tools that read them are no dependencies of Semel.
package deploy

#!/usr/bin/env bash
# A real Kafka Connect for tests, with Debezium's PostgreSQL connector and JDBC sink, from Maven's artifacts. Needs Java 17 and
# Maven. The tests start and kill the worker themselves.
#
#   connect.sh fetch              copy the jars into the cache (80 MB); free when they are there
#   connect.sh with COMMAND...    fetch, and run COMMAND with SEMEL_TEST_CONNECT, the folder of the jars
#
# Environment: SEMEL_CACHE (folder of jars, default .cache).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
jars=${SEMEL_CACHE:-$(cd "$here/../.." && pwd)/.cache}/connect/jars

fail() {
	echo "connect: $*" >&2
	exit 1
}

fetch() {
	command -v mvn >/dev/null || fail "no Maven. 'make setup' brings it, or: apt-get install maven, dnf install maven, brew install maven"
	if cmp -s "$here/pom.xml" "$jars/pom.xml"; then return; fi
	echo "connect: fetching Kafka Connect's and Debezium's jars through Maven, about 80 MB, into $jars" >&2
	rm -rf "$jars" "$jars.new"
	mkdir -p "$jars.new"
	# -C: a jar whose checksum is wrong is an error
	mvn -B -q -C -f "$here/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$jars.new" >"$jars.new/log" 2>&1 ||
		fail "Maven could not fetch Connect: $(cat "$jars.new/log")"
	[[ -n $(find "$jars.new" -name 'debezium-connector-jdbc-*.jar') ]] || fail "Maven fetched no connector: $(cat "$jars.new/log")"
	cp "$here/pom.xml" "$jars.new/"
	mv "$jars.new" "$jars"
}

case ${1:-} in
fetch) fetch ;;
with)
	shift
	fetch
	export SEMEL_TEST_CONNECT=$jars
	exec "${@:?COMMAND}"
	;;
*)
	sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac

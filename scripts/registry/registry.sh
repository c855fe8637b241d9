#!/usr/bin/env bash
# A real schema registry for tests, Apicurio's, from Maven's artifacts. Needs Java 17 and Maven. The tests start and kill it
# themselves.
#
#   registry.sh fetch              unpack it into the cache (110 MB); free when it is there
#   registry.sh with COMMAND...    fetch, and run COMMAND with SEMEL_TEST_REGISTRY, the folder of what was unpacked
#
# Environment: SEMEL_CACHE (default .cache).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=3.0.9 # the last minor version that runs on Java 17; all that it needs is in its archive
folder=${SEMEL_CACHE:-$(cd "$here/../.." && pwd)/.cache}/registry/$version

fail() {
	echo "registry: $*" >&2
	exit 1
}

fetch() {
	command -v mvn >/dev/null || fail "no Maven. 'make setup' brings it, or: apt-get install maven, dnf install maven, brew install maven"
	if [[ -d $folder ]]; then return; fi
	echo "registry: fetching Apicurio Registry through Maven, about 110 MB, into $folder" >&2
	rm -rf "$folder.new"
	mkdir -p "$folder.new"
	# -C: an archive whose checksum is wrong is an error. This old plugin asks for no parent's pom, which can't be had from
	# everywhere and isn't needed.
	mvn -B -q -C org.apache.maven.plugins:maven-dependency-plugin:2.8:get -Dtransitive=false \
		-Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all" -Ddest="$folder.new/all.tar.gz" >"$folder.new/log" 2>&1 ||
		fail "Maven could not fetch the registry: $(cat "$folder.new/log")"
	tar -xzf "$folder.new/all.tar.gz" -C "$folder.new"
	rm "$folder.new/all.tar.gz"
	[[ -n $(find "$folder.new" -name 'apicurio-registry-app-*-runner.jar') ]] || fail "Maven fetched no registry: $(cat "$folder.new/log")"
	mv "$folder.new" "$folder"
}

case ${1:-} in
fetch) fetch ;;
with)
	shift
	fetch
	export SEMEL_TEST_REGISTRY=$folder
	exec "${@:?COMMAND}"
	;;
*)
	sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac

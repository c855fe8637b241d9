#!/usr/bin/env bash
# fuzz.sh TIME: run every fuzz test of the module that long, one after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$file" | while read -r name; do
		echo "$(dirname "$file") $name"
		go test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-30s}" "$(dirname "$file")" </dev/null
	done
done

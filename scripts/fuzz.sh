#!/bin/sh
# Runs every fuzz target in turn: fuzz.sh [DURATION [PACKAGE…]]. Go fuzzes one
# target at a time; what it finds is kept in the package's testdata/fuzz. Making an
# input smaller has ten tries: it could go on for a minute for each, and stall.
set -eu
cd "$(dirname "$0")/.."

duration=${1:-30s}
[ $# -gt 0 ] && shift
dirs=$(go list -f '{{.Dir}}' "${@:-./...}")
for dir in $dirs; do
	targets=$(cat "$dir"/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p')
	for target in $targets; do
		echo "fuzz: $dir $target for $duration"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 10x "$dir"
	done
done

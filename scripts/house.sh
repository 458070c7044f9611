#!/usr/bin/env bash
# Lengths: functions of more than 60 lines (not in test files), lines of more than 120 columns, and
# lines of comments and of documentation of more than 100. Prints each, and fails if there is one. A
# test's data may be wider, which is a row of a table or a raw string, and so may a line with
# //nolint, a table, code or a link of the documentation.
set -euo pipefail
cd "$(dirname "$0")/.."
found=$(mktemp)
trap 'rm -f "$found"' EXIT
git ls-files --cached --others --exclude-standard '*.go' | while read -r f; do
	[ -f "$f" ] || continue # deleted
	case $f in *_test.go) test=1 ;; *) test=0 ;; esac
	# Characters are counted, not bytes, whichever awk this is: a character of UTF-8 has one
	# byte that is not a continuation.
	expand -t4 "$f" | LC_ALL=C awk -v f="$f" -v test="$test" '
		{ gsub(/[\200-\277]/, "") }
		function found(what) { print f ":" NR ": " what }
		/^ *\/\// && length > 100 { found("a comment of more than 100 columns") }
		{ was = raw; if (gsub(/`/, "`") % 2) raw = !raw }
		length > 120 && !/\/\/nolint/ && !(test && (was || /`/ || /^ *(\{|"([^"\\]|\\.)*": |[A-Za-z0-9_.]+: +\{)/)) { found("more than 120 columns") }
		/^func / { name = $0; sub(/^func (\([^)]*\) )?/, "", name); sub(/[[(].*/, "", name); at = NR }
		/^}/ && at { if (!test && NR - at + 1 > 60) found("the function " name " has more than 60 lines"); at = 0 }'
done >"$found"
git ls-files --cached --others --exclude-standard 'README.md' 'SECURITY.md' 'docs/*.md' | while read -r f; do
	[ "$f" = docs/accept/benchmarks.md ] || [ ! -f "$f" ] && continue # written by make compare
	LC_ALL=C awk -v f="$f" '
		{ gsub(/[\200-\277]/, "") }
		/^ *```/ { code = !code }
		{ shown = $0; gsub(/\]\([^() ]*\)/, "]", shown) }
		!code && !/^ *\|/ && !/^    / && length(shown) > 100 { print f ":" NR ": more than 100 columns" }' "$f"
done >>"$found"
cat "$found"
[ ! -s "$found" ]

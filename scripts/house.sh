#!/usr/bin/env bash
# What creeps back if nobody looks: functions that are too long, and wide comments.
# Test files are not meant, but for their comments. Prints each, and fails if there is one that
# scripts/house.txt does not have: that has those which are yet to be parted.
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
		function over(what) { if (!told[what]++) print f ": " what }
		/^ *\/\// && length > 100 { wide = 1 }
		/^func / { name = $0; sub(/^func (\([^)]*\) )?/, "", name); sub(/[[(].*/, "", name); at = NR }
		/^}/ && at { if (!test && NR - at + 1 > 60) over("the function " name " has more than 60 lines"); at = 0 }
		END {
			if (wide) over("a comment is wider than 100 columns")
		}'
done | LC_ALL=C sort >"$found"
touch scripts/house.txt
if [ "${1:-}" = -write ]; then cp "$found" scripts/house.txt; fi
new=$(LC_ALL=C comm -13 scripts/house.txt "$found")
gone=$(LC_ALL=C comm -23 scripts/house.txt "$found")
if [ -n "$gone" ]; then
	echo "scripts/house.txt has what is there no more (scripts/house.sh -write):"
	echo "$gone"
fi
if [ -n "$new" ]; then
	echo "$new"
fi
[ -z "$new$gone" ]

#!/usr/bin/env bash
# Makes a release: scripts/release.sh [-yes] vX.Y.Z
#
# It checks the repository, compares the exported names of each module with those of the last
# release (apidiff), moves the unreleased entries of CHANGELOG.md under the version, sets the version
# in the go.mod files of the nested modules that users import, commits, and tags all of these
# modules. Everything happens in a worktree of its own, and without -yes nothing of it stays: it
# shows the commit and the tags. With -yes the current branch and the tags have them. It never
# pushes.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
apidiff=golang.org/x/exp/cmd/apidiff@v0.0.0-20251209150349-8475f28825e9
export GOWORK=off GOFLAGS=

fail() {
	echo "release: $*" >&2
	exit 1
}

keep=
if [ "${1:-}" = -yes ]; then
	keep=1
	shift
fi
version=${1:-}
[[ $# = 1 && $version =~ ^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)$ ]] ||
	fail "usage: scripts/release.sh [-yes] vX.Y.Z"
major=${BASH_REMATCH[1]} patch=${BASH_REMATCH[3]}
branch=$(git symbolic-ref -q --short HEAD) || fail "HEAD is not a branch"
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed"
! git rev-parse -q --verify "refs/tags/$version" >/dev/null || fail "the tag $version exists"
last=$(git tag --list 'v[0-9]*' --merged HEAD --sort=-version:refname | head -1)
if [ -n "$last" ] && [ "$(printf '%s\n' "$last" "$version" | sort -V | tail -1)" != "$version" ]; then
	fail "the last release is $last"
fi

# Modules that users import, by their folders: all but examples, and those that only test.
modules=$(git ls-files '*go.mod' | xargs -n1 dirname | grep -vE '^(examples|internal|bench|torture)(/|$)' | sort)
path=$(go list -m)
! grep -q '^replace' go.mod || fail "the root's go.mod has replace directives: go install …@$version would refuse it"

logs=$(git rev-list --count "$(git log -1 --format=%H -- docs/accept)..HEAD" -- '*.go' 2>/dev/null || echo unknown)
echo "Since the last commit of docs/accept, $logs commits have changed Go files. Before a release, run make check,"
echo "make accept and make torture on an idle machine, and commit the logs."

work=$(mktemp -d)
trap 'cd "$root"; rm -rf "$work"; git worktree prune' EXIT
git worktree add -q --detach "$work/new" HEAD

# Exported names. A module that did not exist has nothing to compare.
if [ -n "$last" ]; then
	git worktree add -q --detach "$work/last" "$last"
	GOBIN=$work go install "$apidiff" || fail "apidiff cannot be installed"
	broken=
	for m in $modules; do
		[ -f "$work/last/$m/go.mod" ] || continue
		name=$(cd "$work/new/$m" && go list -m)
		for side in last new; do
			(cd "$work/$side/$m" && "$work/apidiff" -m -w "$work/$side.export" "$name") ||
				fail "apidiff cannot read $name ($side)"
		done
		changes=$("$work/apidiff" -m -incompatible "$work/last.export" "$work/new.export")
		if [ -n "$changes" ]; then
			broken=1
			printf 'incompatible with %s: %s\n%s\n' "$last" "$name" "$changes"
		fi
	done
	if [ -n "$broken" ]; then
		[ "${last%%.*}" != "v$major" ] || [ "$major" = 0 ] ||
			fail "an incompatible change of v$major needs a new major version, with other module paths"
		[ "$patch" != 0 ] || awk '/^## / {n++} n == 1 && /^### (Changed|Removed)/ {found = 1} END {exit !found}' \
			CHANGELOG.md || fail "CHANGELOG.md has no section Changed or Removed for the incompatible changes"
		[ "$patch" = 0 ] || fail "a release with incompatible changes must raise the minor version"
	else
		echo "compatible with $last"
	fi
else
	echo "there is no earlier release to compare with"
fi

cd "$work/new"
# CHANGELOG.md: its first section has the unreleased entries.
heading=$(grep -m1 '^## ' CHANGELOG.md) || fail "CHANGELOG.md has no sections"
[[ $heading =~ \(not\ released\ yet\)$ || $heading = "## Unreleased" ]] ||
	fail "the first section of CHANGELOG.md is not of a release to come: $heading"
[[ $heading = "## Unreleased" || $heading = "## $version "* ]] || fail "CHANGELOG.md is about another version: $heading"
awk '/^## / {n++} n == 1 && /^- / {found = 1} END {exit !found}' CHANGELOG.md || fail "CHANGELOG.md has no entries"
awk -v new="## $version ($(date -u +%Y-%m-%d))" '/^## / && !done {print new; done = 1; next} {print}' CHANGELOG.md >CHANGELOG.new
mv CHANGELOG.new CHANGELOG.md

# go.mod: replace only has an effect in this repository, so others need the versions.
for m in $modules; do
	[ "$m" != . ] || continue
	for required in $(cd "$m" && go list -f '{{.Path}}' -m all | grep -E "^$path(/|\$)"); do
		[ "$required" != "$(cd "$m" && go list -m)" ] || continue
		(cd "$m" && go mod edit -require="$required@$version")
	done
	(cd "$m" && go build -mod=mod ./...) || fail "$m does not build"
done
[ -z "$(git status --porcelain | grep -vE '( |/)(CHANGELOG\.md|go\.mod|go\.sum)$')" ] || fail "the build has changed files"

git commit -q -a -m "Release $version" -m "The modules that users import require this version of each other."
git --no-pager show --stat --format='%h %s' HEAD
git --no-pager show --format= -U0 HEAD
tags=()
for m in $modules; do
	tag=$version
	[ "$m" = . ] || tag=$m/$version
	tags+=("$tag")
done
echo "tags: ${tags[*]}"
if [ -z "$keep" ]; then
	echo "This was a dry run: nothing has changed. With -yes, the commit and the tags stay."
	exit 0
fi
release=$(git rev-parse HEAD)
cd "$root"
git merge -q --ff-only "$release"
for tag in "${tags[@]}"; do
	git tag -a -m "$tag" "$tag" "$release"
done
echo "The branch $branch and the tags are ready. To publish them: git push --atomic origin $branch ${tags[*]}"

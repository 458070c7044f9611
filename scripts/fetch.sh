#!/usr/bin/env bash
# Fetches a server that the machine's own packages do not have, for the tests, and prints the
# folder of its programs. It installs nothing: the packages are unpacked into a folder of the
# user's, and run from there with the C library that they bring.
#
# fetch.sh NAME        exits with 1 if the server is not there in the end
# fetch.sh -have NAME  fetches nothing
#
# Tests take the programs on PATH: PATH=$(scripts/fetch.sh valkey-9.1):$PATH go test ./lock
#
# The packages come from a suite of Debian. On Ubuntu they come from the suites that the machine
# uses. To get a newer version later, remove the folder.
set -euo pipefail

# One line for each server: its name, the suite, the package as a regular expression, and its
# programs. A=B makes the program A under the name B. * stands for all programs of the folder.
# The programs print the version that the name ends with.
servers='
mysql          sid           mysql-server-core.*  usr/sbin/mysqld
postgresql-17  trixie        postgresql-17        usr/lib/postgresql/17/bin/*
postgresql-18  sid           postgresql-18        usr/lib/postgresql/18/bin/*
valkey-8.1     trixie        valkey-server        usr/bin/valkey-server=redis-server
valkey-9.1     sid           valkey-server        usr/bin/valkey-server=redis-server
redis-8.6      experimental  redis-server         usr/bin/redis-server
'

fail() {
	echo "no ${name:-server}: $*" >&2
	exit 1
}

fetch=yes
[ "${1:-}" != -have ] || { fetch= && shift; }
[ $# = 1 ] || fail "usage: fetch.sh [-have] NAME"
name=$1
read -r suite package programs < <(awk -v name="$name" '$1 == name { print $2, $3, $4 }' <<<"$servers") ||
	fail "the names are $(awk '{ print $1 }' <<<"$servers" | xargs)"
base=${XDG_CACHE_HOME:-$HOME/.cache}/cacheaside
# PostgreSQL refuses to run as root. The user that it runs as cannot pass root's home.
case $(id -u)$name in 0postgresql-*) base=/var/cache/cacheaside ;; esac
folder=$base/$name bin=$base/$name/bin
if [ -d "$bin" ]; then
	echo "$bin"
	exit
fi
[ -n "$fetch" ] || exit 1

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "without apt-get, install it yourself"
mkdir -p "$base"
exec 9>"$folder.lock"
flock 9
if [ -d "$bin" ]; then # another process has fetched it in the meantime
	echo "$bin"
	exit
fi

work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
apt=$work/apt root=$work/root
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/none" "$root"
: >"$apt/status"
. /etc/os-release
if [ "${ID:-}" = ubuntu ]; then
	sources="Dir::Etc::sourcelist \"/etc/apt/sources.list\"; Dir::Etc::sourceparts \"/etc/apt/sources.list.d\";"
else
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk -v r="${VERSION_CODENAME:-stable}" '$2 == r && !uri { uri = $1 } END { print uri }')
	keys=/usr/share/keyrings/debian-archive-keyring.gpg
	[ ! -e $keys ] || signed="[signed-by=$keys] "
	for s in $suite $([ "$suite" != experimental ] || echo sid); do # experimental lacks most packages
		echo "deb ${signed:-}${mirror:-http://deb.debian.org/debian} $s main" >>"$apt/sources"
	done
	sources="Dir::Etc::sourcelist \"$apt/sources\"; Dir::Etc::sourceparts \"$apt/none\"; APT::Default-Release \"$suite\";"
fi
# How the machine reaches its mirror (a proxy, say) is taken over, its hooks are not.
cat >"$apt/conf" <<CONF
$(apt-config dump | grep -E '^Acquire::[^ ]+ "[^"]' | grep -v -E '^Acquire::(IndexTargets|CompressionTypes|Changelogs)' || true)
Dir::Etc::main "$apt/none/main"; Dir::Etc::parts "$apt/none"; Dir::Etc::preferences "$apt/none/preferences"; Dir::Etc::preferencesparts "$apt/none";
$sources
Dir::State "$apt"; Dir::State::lists "$apt/lists"; Dir::State::status "$apt/status";
Dir::Cache "$apt/cache"; Dir::Cache::archives "$apt/cache/archives";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Debug::NoLocking "true";
CONF
export APT_CONFIG=$apt/conf DEBIAN_FRONTEND=noninteractive
apt-get update -q >"$apt/log" 2>&1 || fail "apt-get update: $(tail -n 1 "$apt/log")"
found=$(apt-cache search --names-only "^$package\$" | awk '{ print $1 }' | sort -V | tail -n 1)
[ -n "$found" ] || fail "no package $package at the mirror: $(tail -n 1 "$apt/log")"
apt-get install -q -y --download-only "$found" >"$apt/log" 2>&1 || fail "apt-get install $found: $(tail -n 1 "$apt/log")"
for file in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$file" "$root"; done
rm -rf "$apt"

# The programs run with the loader and the libraries that they were built for, whatever the
# machine has.
loader=$(cd "$root" && find . \( -name 'ld-linux*.so.*' -o -name 'ld64.so.*' \) -printf '%P\n' | sort | head -n 1)
[ -n "$loader" ] || fail "the packages have no loader"
libraries=$(cd "$root" && find . -name 'lib*.so.*' -printf '%h\n' | sort -u | sed "s|^\.|$folder/root|" | paste -sd :)

# program PATH NAME writes a script NAME that runs the program PATH of the packages.
mkdir "$work/unchecked"
program() {
	cat >"$work/unchecked/$2" <<-PROGRAM
		#!/bin/sh
		exec "$folder/root/$loader" --library-path "$libraries" "$folder/root/$1" "\$@"
	PROGRAM
	chmod 755 "$work/unchecked/$2"
}
case $programs in
*\*) # these start each other, in their own folder: each one has its wrapper there too
	for file in "$root/${programs%\*}"*; do
		file=${file#"$root/"}
		mv "$root/$file" "$root/$file.program"
		program "$file.program" "$(basename "$file")"
		cp "$work/unchecked/$(basename "$file")" "$root/$file"
	done
	first=postgres
	;;
*)
	first=$(basename "${programs#*=}")
	program "${programs%=*}" "$first"
	;;
esac
# The wrappers name the folder where all this is in the end. Other processes take what is in bin
# without a check, so it only gets there after the check, even if this process is killed.
rm -rf "$folder"
mv "$work" "$folder"
case $name in mysql) defaults=--no-defaults number='[0-9]+' ;; *) number=${name##*-} ;; esac
version=$("$folder/unchecked/$first" ${defaults:-} --version 2>&1 | tail -n 1) || true
if ! [[ $version =~ [^0-9.]$number[.] ]]; then
	rm -rf "$folder"
	fail "what the mirror has prints the version: $version"
fi
mv "$folder/unchecked" "$bin"
echo "$bin"

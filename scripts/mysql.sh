#!/usr/bin/env bash
# Fetches a MySQL server for the tests, and prints its version. It installs nothing: the
# packages are unpacked into a folder of the user's, and run from there with the C library
# that they bring. A mysqld on PATH that is MySQL, not MariaDB, is taken instead.
#
# Ubuntu has MySQL in the suites that the machine uses. Debian has it in sid only, of which
# the newest version is taken; to get a newer one later, remove the folder.
#
# mysql.sh          exits with 1 if there is no MySQL in the end
# mysql.sh -version prints the version that the tests would start, or nothing; fetches nothing
set -euo pipefail
folder=${XDG_CACHE_HOME:-$HOME/.cache}/cacheaside/mysql

version() { "$1" --no-defaults --version 2>/dev/null | head -n 1; }

# found prints a MySQL server that is there.
found() {
	local program
	for program in "$(command -v mysqld || true)" /usr/sbin/mysqld "$folder/mysqld"; do
		if [ -x "$program" ] && version "$program" | grep -vi mariadb | grep -q Ver; then
			echo "$program"
			return
		fi
	done
	return 1
}

fail() {
	echo "no MySQL: $*" >&2
	exit 1
}

if program=$(found); then
	version "$program"
	exit
fi
[ "${1:-}" != -version ] || exit 0

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "without apt-get, install mysqld yourself"
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock"
flock 9
if program=$(found); then # meanwhile another one has fetched it
	version "$program"
	exit
fi

work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
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
	echo "deb ${signed:-}${mirror:-http://deb.debian.org/debian} sid main" >"$apt/sources"
	sources="Dir::Etc::sourcelist \"$apt/sources\"; Dir::Etc::sourceparts \"$apt/none\";"
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
package=$(apt-cache search --names-only '^mysql-server-core' | awk '{ print $1 }' | sort -V | tail -n 1)
[ -n "$package" ] || fail "no mysql-server-core at the mirror: $(tail -n 1 "$apt/log")"
apt-get install -q -y --download-only "$package" >"$apt/log" 2>&1 || fail "apt-get install $package: $(tail -n 1 "$apt/log")"
for file in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$file" "$root"; done
rm -rf "$apt"

# The program runs with the loader and the libraries that it was built for, whatever the machine has.
loader=$(cd "$root" && find . -name 'ld-linux*.so.*' -o -name 'ld64.so.*' | sort | head -n 1)
libraries=$(cd "$root" && find . \( -name 'libc.so.6' -o -name 'libcrypto.so.*' -o -path '*/mysql/private/*.so*' \) -printf '%h\n' | sort -u | sed "s|^\.|$folder/root|" | paste -sd :)
[ -n "$loader" ] && [ -x "$root/usr/sbin/mysqld" ] || fail "the packages have no mysqld or no loader"
cat >"$work/mysqld" <<PROGRAM
#!/bin/sh
exec "$folder/root/${loader#./}" --library-path "$libraries" "$folder/root/usr/sbin/mysqld" "\$@"
PROGRAM
chmod +x "$work/mysqld"
chmod 755 "$work"
rm -rf "$folder"
mv "$work" "$folder"
program=$(found) || fail "what was unpacked into $folder does not run: $("$folder/mysqld" --no-defaults --version 2>&1 | tail -n 1)"
version "$program"

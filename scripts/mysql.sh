#!/usr/bin/env bash
# Fetches a MySQL server for the tests, and prints its version. A mysqld on PATH that is MySQL, not
# MariaDB, is taken instead. How it is fetched: see fetch.sh.
#
# mysql.sh          exits with 1 if there is no MySQL in the end
# mysql.sh -version prints the version that the tests would start, or nothing; fetches nothing
set -euo pipefail
fetch=$(dirname "$0")/fetch.sh

version() { "$1" --no-defaults --version 2>/dev/null | grep -vi mariadb | grep Ver; }

for program in "$(command -v mysqld || true)" /usr/sbin/mysqld; do
	[ ! -x "$program" ] || ! version "$program" || exit 0
done
case ${1:-} in
-version) bin=$("$fetch" -have mysql) || exit 0 ;;
*) bin=$("$fetch" mysql) ;;
esac
version "$bin/mysqld"

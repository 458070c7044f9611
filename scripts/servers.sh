#!/usr/bin/env bash
# Installs the servers that the tests start themselves. It starts none, and keeps the packages from
# doing so now. The packages of Redis, MariaDB and PostgreSQL start theirs when the machine boots.
# MySQL, Valkey and PostgreSQL 18 are fetched only where everything has to be tested: see fetch.sh. If that fails,
# their tests do.
set -euo pipefail
if [ "${CI:-}" = true ]; then
	"$(dirname "$0")/mysql.sh" || true
	"$(dirname "$0")/fetch.sh" valkey-9.1 || true
	"$(dirname "$0")/fetch.sh" postgresql-18 || true
fi
missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
command -v redis-sentinel >/dev/null || missing+=(redis-sentinel)
command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
[ -e /usr/share/java/zookeeper.jar ] || missing+=(zookeeper)
command -v java >/dev/null || missing+=(openjdk-17-jre-headless)
command -v nats-server >/dev/null || [ -x /usr/sbin/nats-server ] || missing+=(nats-server)
command -v chromium >/dev/null || missing+=(chromium)
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
	echo "To run all tests, install: $* (found missing: ${missing[*]}). Without them the tests that need them are skipped." >&2
	[ "${CI:-}" != true ] || exit 1
	exit 0
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# A policy that refuses every start, for the time of the installation, unless the machine has one of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
	$sudo chmod +x $policy
	trap '$sudo rm -f $policy' EXIT
fi
$sudo apt-get update -q >/dev/null
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >/tmp/cacheaside-apt.log 2>&1 || { tail -30 /tmp/cacheaside-apt.log >&2; exit 1; }

# Puts the temporary files of what runs next into memory, where there is room for them. To be sourced.
#
# The tests start some hundred servers, and create and drop a database for each of a thousand tests.
# These are many small files. On a disk the kernel can take as long for them as the tests do: an ext4
# without a journal looks at each file that was removed within the last minutes before it creates one.
# Set TMPDIR to have them elsewhere. `make accept` does not use this, because its figures are those
# of a disk.
in_memory() {
	local shm=/dev/shm
	awk '$2 == "'$shm'" && $3 == "tmpfs" && $4 !~ /noexec/ { found = 1 } END { exit !found }' /proc/mounts || return
	awk '$1 == "MemAvailable:" { exit $2 < 6 * 1024 * 1024 }' /proc/meminfo || return
	[ "$(df -k --output=avail $shm | tail -1)" -ge $((4 * 1024 * 1024)) ] || return
	TMPDIR=$(mktemp -d $shm/cacheaside-XXXXXX) || return
	chmod 711 "$TMPDIR" # PostgreSQL may run as another user
	export TMPDIR
	trap 'rm -rf "$TMPDIR"' EXIT
}
[ -n "${TMPDIR:-}" ] || in_memory 2>/dev/null || true # there is no such thing on other systems

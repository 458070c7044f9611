# How the tests, and what else .ci/run compiles, are compiled: alike, so that one part finds in
# the build cache what another has compiled. To be sourced.
#
# With -trimpath another clone finds it, too. DWARF would take 8 % of the time, and nobody looks
# at it. What others have written is compiled without inlining: the root's tests, and all that they
# need, take a quarter less, and run as fast. That would not hold for the standard library and for
# SQLite, which are asked most: they are compiled as usual, and so are the repository's packages.
#
# The race detector does not look into SQLite, the embedded Redis with its Lua, and porcupine. Only
# the tests use them, no other code relies on their atomic operations, and they are up to ten times
# as fast without it.
flags=-dwarf=false
export GOFLAGS="-trimpath '-gcflags=all=$flags -l' -gcflags=std=$flags"
for module in modernc.org/... github.com/alicebob/miniredis/... github.com/yuin/gopher-lua/... github.com/anishathalye/porcupine/...; do
	GOFLAGS+=" '-gcflags=$module=$flags -race=false'"
done
GOFLAGS+=" -gcflags=github.com/cacheaside/...=$flags"
unset flags module

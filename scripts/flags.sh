# How the tests, and what else .ci/run compiles, are compiled: alike, so that one part finds in
# the build cache what another has compiled. To be sourced.
#
# With -trimpath another clone finds it, too. DWARF would take 8 % of the time, and nobody looks
# at it. What others have written is compiled without inlining: the root's tests, and all that they
# need, take a quarter less, and run as fast. That would not hold for the standard library and for
# SQLite, which are asked most: they are compiled as usual, and so are the repository's packages.
#
# The race detector does not look into SQLite, which is translated from C, and into the Lua of the
# embedded Redis: only tests use them, and they are up to ten times as fast without it. It must look
# into what compiles generic functions of the standard library that other packages call, too. The
# linker keeps one copy of each, and if that of sync.Map comes from a package without the race
# detector, there are false reports (miniredis; `go tool nm` lists the functions).
flags=-dwarf=false
export GOFLAGS="-trimpath '-gcflags=all=$flags -l' -gcflags=std=$flags -gcflags=modernc.org/...=$flags"
GOFLAGS+=" '-gcflags=modernc.org/libc/...=$flags -race=false' '-gcflags=modernc.org/sqlite/lib=$flags -race=false'"
GOFLAGS+=" '-gcflags=github.com/yuin/gopher-lua/...=$flags -race=false -l'"
GOFLAGS+=" -gcflags=github.com/cacheaside/...=$flags"
unset flags

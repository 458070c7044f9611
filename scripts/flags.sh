# How the tests, and what else .ci/run compiles, are compiled: alike, so that one part finds in
# the build cache what another has compiled. To be sourced.
#
# With -trimpath another clone finds it, too. DWARF would take 8 % of the time, and nobody looks
# at it. What others have written is compiled without inlining: the root's tests, and all that they
# need, take a quarter less, and run as fast. That would not hold for the standard library and for
# SQLite, which are asked most: they are compiled as usual, and so are the repository's packages.
export GOFLAGS="-trimpath '-gcflags=all=-dwarf=false -l' -gcflags=std=-dwarf=false -gcflags=modernc.org/...=-dwarf=false -gcflags=github.com/cacheaside/...=-dwarf=false"

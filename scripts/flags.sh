# How the tests, and what else .ci/run compiles, are compiled: alike, so that one part finds in
# the build cache what another has compiled. To be sourced.
#
# With -trimpath another clone finds it, too. DWARF would take 8 % of the time, and nobody looks
# at it. What others have written, but for the standard library, is compiled without inlining: the
# root's tests and all that they need take a quarter less, and run as fast. The repository's own
# packages are compiled as their users compile them.
export GOFLAGS="-trimpath '-gcflags=all=-dwarf=false -l' -gcflags=std=-dwarf=false -gcflags=github.com/cacheaside/...=-dwarf=false"

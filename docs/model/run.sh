#!/bin/bash
# run.sh MODEL "-D switches" [ok|bad] [bfs]: exhaustive check of one configuration; prints one line.
m=$1; d=$2; want=$3; mode=$4; here=$(cd "$(dirname "$0")" && pwd)
t=$(mktemp -d); cp "$here/$m" "$t/m.pml"; cd "$t" || exit 1
c="-DSAFETY -DCOLLAPSE -DMEMLIM=${M:-2900} -DVECTORSZ=2048 -DNOCLAIM"; [ "$mode" = bfs ] && c="-DBFS -DSAFETY -DVECTORSZ=2048 -DMEMLIM=${M:-2900} -DNOCLAIM"
spin -a $d m.pml >spin.out 2>&1 || { echo "SPIN ERROR $m $d"; cat spin.out; exit 1; }
[ -f pan.c ] || { cat spin.out; exit 1; }
gcc -O2 $c -w -o pan pan.c || exit 1
t0=$(date +%s.%N)
timeout ${T:-300} ./pan -E -m2000000 >pan.out 2>&1
sec=$(echo "$(date +%s.%N) - $t0" | bc 2>/dev/null || awk -v a=$t0 -v b=$(date +%s.%N) "BEGIN{printf \"%.1f\",b-a}"); sec=$(printf %.1f "$sec")
st=$(grep -oE '[0-9.e+]+ states, stored' pan.out | head -1)
if grep -q 'errors: 0' pan.out && ! grep -q 'Search not completed\|memory limit\|max search depth too small' pan.out; then r=ok
elif grep -q '^pan:[0-9]*: .*assertion violated' pan.out; then r=bad; why=$(grep -m1 -oE 'assertion violated.*' pan.out)
else r=INCOMPLETE; why=$(tail -3 pan.out|tr '\n' ' '); fi
mark=""; [ -n "$want" ] && { [ "$want" = "$r" ] && mark="as expected" || mark="UNEXPECTED"; }
printf '%-12s %-62s %-10s %-24s %7ss %s %s\n' "$m" "$d" "$r" "$st" "$sec" "$mark" "$why"
[ -n "$TRACE" ] && [ "$r" = bad ] && spin -t -p -g -l $d m.pml | grep -vE '^\s*$' | head -${TRACE}
rm -rf "$t"

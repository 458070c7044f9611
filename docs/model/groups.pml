/* Groups of one loader, in one range. One key, whose value belongs to a group that its version determines (G). Redis has
   the entry or lease, the set (S: the numbers of two groups, fl: the floor, 0 if the set does not exist) and the counter N.
   The processes P and Q have a log (last, floor, num), stripes, and P a memory tier; messages and polls bring news. A tool
   has no log. A Fresh read reads news first. A plain read must see the invalidations of its own process only.
   Numbers come from a clock that is above all earlier ones (lastn), or with BEHIND, from a clock that is behind: then only
   the counter, the set and the caller's last are known. */
#define ABSENT 0
#define ENTRY  1
#define LEASE  2
#define P      0
#define Q      1
#define TOOL   2
#define BARE   0        /* the block of an entry: none, */
#define OWN    1        /* the group of its version, */
#define ALL    2        /* or all groups */
#ifndef FRESHP
#define FRESHP 1        /* reads: Fresh in P, */
#endif
#ifndef FRESHQ
#define FRESHQ 0
#endif
#ifndef PLAINP
#define PLAINP 0
#endif
#ifndef PLAINQ
#define PLAINQ 1        /* plain in Q */
#endif
#ifndef WT
#define WT 1            /* writers: change the row, and invalidate the group that it belonged to: the tool, */
#endif
#ifndef WP
#define WP 0            /* P, */
#endif
#ifndef WQ
#define WQ 0
#endif
#ifndef OTHER
#define OTHER 0         /* invalidations of group 1 by the tool, without a change */
#endif
#ifndef POLLP
#define POLLP 0
#endif
#ifndef POLLQ
#define POLLQ 0
#endif
#ifndef MSGQ
#define MSGQ 0          /* 1: Q receives messages */
#endif
#ifndef MEM
#define MEM 0           /* processes that have a memory tier */
#endif
#ifndef GROUPS
#define GROUPS 2        /* bit v: the group of version v. Default: 0, 1, 0 */
#endif
#ifndef EVICT
#define EVICT 0         /* losses of the set, */
#endif
#ifndef EVICTN
#define EVICTN 0        /* of the counter, */
#endif
#ifndef FLUSH
#define FLUSH 0         /* of all */
#endif
#ifndef ROLL
#define ROLL 0          /* failovers that lose the last changes */
#endif
#define MSGS 3
#define READS (FRESHP + FRESHQ + PLAINP + PLAINQ)
#define W(x) assert(WITNESS != x)       /* WITNESS=x: shows that this place is reached */
#ifndef WITNESS
#define WITNESS 0
#endif
#define G(v) ((GROUPS >> (v)) & 1)
#define MAX(a,b) ((a) > (b) -> (a) : (b))
#define MIN(a,b) ((a) < (b) -> (a) : (b))

typedef Process {
  byte last, floor, num[2];             /* the log */
#ifdef SEEN
  byte lastg;                           /* whose number last is: a group, or 2: the floor */
#endif
#ifdef LAG
  byte numv[2], floorv;                 /* the version that a replica must have before the number is old */
#endif
  byte stripe[2], epoch;                /* versions; the epoch is the stripe of the loader's pseudo-group, for the floor */
  bool mu, found;                       /* the lock of the log; found: without Groups, it has found the mark */
  bool mp; byte mver, mgen;             /* memory: one slot */
  byte trust[2], own[2];                /* ghosts: acknowledged when the last poll was sent; by this process */
  bool lost, mending                    /* ghosts: a message lost since the last poll; before the poll in progress */
}
Process L[2];
byte db, acked[2];                      /* the row; ghost: the version whose invalidation has been acknowledged, by group */
byte kind, kver, kknown, kblk, ktok;    /* ktok: the token of the lease, then the stamp of the entry */
byte S[2], fl, lastn, ended;
bool mark;                              /* the loader has groups; it is lost only with the generations, which outdates all */
#ifdef BEHIND
byte N;
#endif
#ifdef LAG                              /* loads from a replica of the database, unless the log has a young number */
byte replica, Sv[2], flv;
#define V(x) x
#else
#define V(x) skip
#endif
chan msg[2] = [MSGS] of { byte, byte, byte };
byte fo, sacked[2];                     /* ghosts: failovers; what was acknowledged at the replica's state */
#if ROLL > 0
byte skind, skver, skknown, skblk, sktok, sS[2], sfl;
#ifdef BEHIND
byte sN;
#endif
#endif
#define NEWEST MAX(fl, MAX(S[0], S[1]))

#ifdef BAREQ                            /* Q is a program without Groups */
#define PLAIN(p) (p == Q)
#else
#define PLAIN(p) false
#endif
#define NEWESTNUM(p) MAX(L[p].num[0], L[p].num[1])
#define NUM(p,v,b) ((PLAIN(p) || b == ALL) -> NEWESTNUM(p) : L[p].num[G(v)])
#define GEN(p,v) (PLAIN(p) -> L[p].epoch + L[p].stripe[0] + L[p].stripe[1] : L[p].epoch + L[p].stripe[G(v)])
#ifdef MUT_BARE
#define BLOCK(b) (b == BARE) ||
#else
#define BLOCK(b) (b != BARE) &&
#endif
#ifdef AHEAD                            /* known is not above the last number that the reader knows: it reads news again */
#define KNOWN(p,k) k <= L[p].last &&
#else
#define KNOWN(p,k)
#endif
#define CURRENT(p,v,k,b) ((PLAIN(p) && !L[p].found) || (L[p].last > 0 && BLOCK(b) (KNOWN(p,k) k >= L[p].floor && NUM(p,v,b) <= k)))

#ifdef MUT_NOTNEWEST
#define ABOVE 0
#else
#define ABOVE NEWEST
#endif
inline number(new, above) {
#ifdef BEHIND
  new = MAX(N, MAX(ABOVE, above)) + 1; N = new
#else
  lastn++; new = lastn
#endif
}

/* news: a read of the set; if it is empty, a script that creates the set again; then the log, then the stripes */
#ifdef MUT_EXCLUSIVE
#define SINCE(s) (s > l -> s : 0)
#else
#define SINCE(s) (s >= l -> s : 0)
#endif
#ifdef SEEN                             /* the reply must have the member that had the number last, or a floor that covers it */
#define MISSING(p) (fl < l && (L[p].lastg == 2 || S[L[p].lastg & 1] < l))
#else
#define MISSING(p) (r0 == 0 && r1 == 0 && rf == 0)
#endif
#define READ(p) r0 = SINCE(S[0]); r1 = SINCE(S[1]); rf = SINCE(fl); e = (fl == 0 || MISSING(p)); \
  V(v0 = Sv[0]); V(v1 = Sv[1]); V(vf = flv)
#if defined(MUT_FLOORSAME)
#define FLOOR(p) L[p].floor
#elif defined(MUT_FLOORLAST)
#define FLOOR(p) l
#else
#define FLOOR(p) n
#endif
#if defined(RAISE)                      /* creates in any case */
#define THERE(p) false
#elif defined(SEEN)
#define THERE(p) (fl != 0 && !MISSING(p))
#else
#define THERE(p) (fl != 0 && NEWEST >= l)
#endif
#ifdef MUT_EXCLUSIVE
#define CREATES(p) (l == 0 && fl == 0)
#else
#define CREATES(p) (!PLAIN(p) || L[p].found)
#endif
#ifdef MUT_NOLOCK
#define UNLOCKED(p) true
#define LOCK 0
#else
#define UNLOCKED(p) (!L[p].mu)
#define LOCK 1
#endif
inline intolog(p) {
  if :: r0 > L[p].num[0] -> L[p].num[0] = r0; V(L[p].numv[0] = v0) :: else fi;
  if :: r1 > L[p].num[1] -> L[p].num[1] = r1; V(L[p].numv[1] = v1) :: else fi;
  if :: rf > L[p].floor -> L[p].floor = rf; V(L[p].floorv = vf) :: else fi }
#ifdef MUT_NOVOID                       /* a floor that replaces unknown numbers does not outdate memory */
#define VOID(p) false
#else
#define VOID(p) (L[p].last > 0 && rf > L[p].last)
#endif
inline compare(p) { c0 = r0 > L[p].num[0]; c1 = r1 > L[p].num[1]; cf = VOID(p) }
inline bump(p) {
  if :: c0 -> L[p].stripe[0]++ :: else fi;
  if :: c1 -> L[p].stripe[1]++ :: else fi;
  if :: cf -> L[p].epoch++ :: else fi;
  if :: L[p].mp && L[p].mgen != GEN(p, L[p].mver) -> L[p].mp = false; L[p].mver = 0; L[p].mgen = 0 :: else fi }
#ifdef SEEN
#define LASTG(p) L[p].lastg = (n == rf -> 2 : (n == r1 -> 1 : 0))
#else
#define LASTG(p) skip
#endif
inline tolast(p) { n = MAX(rf, MAX(r0, r1)); if :: n > L[p].last -> L[p].last = n; LASTG(p) :: else fi }
inline apply(p, all) {
#ifdef MUT_STRIPEFIRST
  atomic { UNLOCKED(p) -> L[p].mu = LOCK; compare(p); bump(p) };
  atomic { intolog(p); if :: all -> tolast(p) :: else fi; L[p].mu = 0; c0 = 0; c1 = 0; cf = 0 }
#else
  atomic { UNLOCKED(p) -> L[p].mu = LOCK; compare(p); intolog(p) };
  atomic { bump(p); if :: all -> tolast(p) :: else fi; L[p].mu = 0; c0 = 0; c1 = 0; cf = 0 }
#endif
}
/* a program without Groups finds the mark, and then outdates its memory */
inline discover(p) {
  if
  :: PLAIN(p) && !L[p].found && mark ->
     L[p].found = true;
     atomic { UNLOCKED(p) -> cf = true; bump(p); cf = false }
  :: else
  fi }
#define TOP MAX(rf, MAX(r0, r1))
#ifdef PART                             /* the reply may have only the newest number, which is then the floor */
inline part() {
  if
  :: !e && TOP > MAX(l, rf) -> atomic {
       n = TOP; V(vf = MAX(vf, MAX(v0, v1)));
       if :: r0 < n -> r0 = 0 :: else -> r1 = 0 fi;
#ifndef MUT_PARTSAME
       rf = n;
#else
       rf = 0;
#endif
       n = 0 }
  :: true
  fi }
#else
#define part() skip
#endif
inline news(p) {
  discover(p);
  atomic {
    if
    :: PLAIN(p) && !L[p].found -> e = true               /* it does not read the set */
    :: else -> l = L[p].last; READ(p); if :: !PLAIN(p) -> mark = true :: else fi
    fi };
  if
  :: e && CREATES(p) ->
     atomic {
       if
       :: THERE(p) -> W(1);
#ifdef MUT_CREATEBLIND
          r0 = 0; r1 = 0; rf = fl; V(vf = flv)
#else
          READ(p)
#endif
       :: else -> if :: fl != 0 -> W(2) :: else -> W(3) fi;
          number(n, l); fl = FLOOR(p); S[0] = 0; S[1] = 0; r0 = 0; r1 = 0; rf = fl; V(flv = db); V(vf = flv)
       fi; n = 0; e = false }
  :: else
  fi;
  part();
  if
  :: !e -> apply(p, true)
  :: else
  fi;
  atomic { r0 = 0; r1 = 0; rf = 0; v0 = 0; v1 = 0; vf = 0; l = 0; n = 0; e = false } }

/* one invalidation, from its own process or a message, under the lock of the log */
#define ONE(g,n,v) v0 = v; v1 = v; r0 = (g == 0 -> n : 0); r1 = (g == 1 -> n : 0); rf = 0
#ifdef MUT_LASTMSG
#define BYMSG(p,n) L[p].last = MAX(L[p].last, n)
#else
#define BYMSG(p,n) skip
#endif

#ifdef MUT_FLOOROLD                      /* the floor is no invalidation */
#define YOUNG(p) (L[p].numv[0] > replica || L[p].numv[1] > replica)
#else
#define YOUNG(p) (L[p].numv[0] > replica || L[p].numv[1] > replica || L[p].floorv > replica)
#endif
proctype Reader(byte p; bool isfresh) { byte n0, n1, f0, v, k, b, st, kd, sv, n, l, r0, r1, rf, v0, v1, vf; bool e, c0, c1, cf, got;
  atomic {
    if :: isfresh -> n0 = acked[0]; n1 = acked[1] :: else -> n0 = L[p].own[0]; n1 = L[p].own[1] fi; f0 = fo };
  if :: isfresh -> news(p) :: else fi;
  atomic { if :: L[p].mp -> v = L[p].mver; goto ret :: else fi };
again:
  atomic { kind != LEASE -> kd = kind; v = kver; k = kknown; b = kblk; st = ktok };
#ifdef AHEAD
  if :: kd == ENTRY && k > L[p].last -> news(p) :: else fi;
#endif
  if
  :: kd == ENTRY && CURRENT(p,v,k,b) -> goto put
  :: else
  fi;
  atomic {
#ifdef MUT_NOCOMPARE
    if :: kind != LEASE
#else
    if :: kind == kd && (kd == ABSENT || ktok == st)
#endif
          -> kind = LEASE; ktok = _pid; kver = 0; kknown = 0; kblk = 0; got = true;
          if :: kd == ENTRY -> W(4) :: else fi
       :: else -> got = false fi; v = 0; k = 0; b = 0; st = 0; kd = 0 };
  if :: !got -> goto again :: else fi;
#if defined(TRIPALWAYS)
  news(p);
#elif defined(TRIP)
  if :: news(p) :: true fi;                              /* in the trip that requested the lease */
#endif
#ifdef MUT_YOUNGFIRST
  got = YOUNG(p);
#endif
#ifndef MUT_KNOWNLATE
  k = L[p].last;
#endif
#ifdef LAG
#ifndef MUT_YOUNGFIRST
  got = YOUNG(p);
#endif
  v = (got -> db : replica);
#else
  v = db;
#endif
#ifdef MUT_KNOWNLATE
  k = L[p].last;
#endif
  atomic {
    b = (PLAIN(p) -> (L[p].found -> ALL : BARE) : OWN);
    if :: kind == LEASE && ktok == _pid -> kind = ENTRY; kver = v; kknown = k; kblk = b; got = true
       :: else -> got = false fi };
  if :: !got -> W(5); goto again :: else fi;
put:
#ifdef MUT_VERSIONLATE
  got = CURRENT(p,v,k,b); sv = GEN(p,v);
#else
  if :: p < MEM -> sv = GEN(p,v); got = CURRENT(p,v,k,b) :: else -> got = false fi;
#endif
  atomic { if :: got && p < MEM && sv == GEN(p,v) -> L[p].mp = true; L[p].mver = v; L[p].mgen = sv :: else -> if :: p < MEM -> W(6) :: else fi fi };
ret:
  atomic {
    if :: isfresh && f0 != fo -> n0 = MIN(n0, sacked[0]); n1 = MIN(n1, sacked[1]) :: else fi;
    assert(v >= (G(v) == 0 -> n0 : n1));
#ifdef ENDS
    ended++
#endif
  } }

/* a memory hit: the bound, the process' own invalidations, and all of them if nothing is under way or lost */
#ifdef MUT_NOLOCK
#define QUIET(p) false
#else
#define QUIET(p) (len(msg[p]) == 0 && !L[p].lost && !L[p].mending && !L[p].mu && (!PLAIN(p) || L[p].found))
#endif
proctype Hit(byte p) {
  do
  :: atomic { L[p].mp ->                                 /* otherwise bump has removed it */
       assert(L[p].mver >= L[p].trust[G(L[p].mver)]);
       assert(L[p].mver >= L[p].own[G(L[p].mver)]);
       assert(!QUIET(p) || L[p].mver >= acked[G(L[p].mver)]) }
  od }

#ifdef BOTH
#define BOTHONE(n,v) v0 = v; v1 = v; r0 = n; r1 = n
#define BOTHDONE(a) a[1-g] = MAX(a[1-g], my)
#else
#define BOTHONE(n,v) skip
#define BOTHDONE(a) skip
#endif
#ifdef LAG
#define VERSION my
#else
#define VERSION 0
#endif
inline publish(q) {
  if :: q < 1 + MSGQ -> if :: nfull(msg[q]) -> msg[q]!g,n,VERSION :: true -> if :: q < MEM -> L[q].lost = true :: else fi fi
     :: else -> if :: q < MEM -> L[q].lost = true :: else fi fi }
proctype Writer(byte p; bool change) { byte my, g, n, low, f0, r0, r1, rf, v0, v1, vf; bool c0, c1, cf;
  atomic { if :: change -> g = G(db); db++ :: else -> g = 1 fi; my = db };
  atomic {
#ifndef MUT_NOCALLER
    if :: p != TOOL -> low = L[p].last :: else fi;
#endif
    number(n, low);
#ifdef BOTH                             /* the writer invalidates both groups: the last number is the announced one */
#ifdef MUT_BOTHBELOW
    n--;
#endif
    if :: fl != 0 -> S[1-g] = n; V(Sv[1-g] = my) :: else fi;
#ifdef MUT_BOTHBELOW
    n++;
#else
    number(n, low);
#endif
#endif
    low = 0;
#ifndef MUT_NOMARK
    mark = true;
#endif
    if
    :: fl != 0 -> S[g] = n; V(Sv[g] = my);
#ifdef TRIM
       if
       :: S[1-g] != 0 ->
#ifndef MUT_TRIMSAME
          V(flv = (S[1-g] > fl -> Sv[1-g] : flv)); fl = MAX(fl, S[1-g]);
#endif
          S[1-g] = 0
       :: true -> skip
       fi
#endif
    :: else -> W(7);
#ifdef CREATEINV
       fl = n; S[g] = n; V(Sv[g] = my); V(flv = db)
#endif
    fi;
#ifdef MUT_NOOWN
    publish(P); publish(Q);
#else
    if :: p != P -> publish(P) :: else fi;
    if :: p != Q -> publish(Q) :: else fi;
#endif
    f0 = fo };
#ifndef MUT_NOOWN
  if :: p != TOOL -> ONE(g,n,my); BOTHONE(n,my); apply(p, false); BYMSG(p,n) :: else fi;
#endif
  atomic {
    if :: f0 == fo -> acked[g] = MAX(acked[g], my); BOTHDONE(acked) :: else fi;
    if :: p != TOOL -> L[p].own[g] = MAX(L[p].own[g], my); BOTHDONE(L[p].own) :: else fi } }

proctype Handler(byte p) { byte g, n, my, r0, r1, rf, v0, v1, vf; bool c0, c1, cf;
  do
  :: atomic { len(msg[p]) > 0 && UNLOCKED(p) -> msg[p]?g,n,my; ONE(g,n,my); BOTHONE(n,my); L[p].mu = LOCK; compare(p);
       if :: PLAIN(p) && !L[p].found -> L[p].found = true; cf = true :: else fi;
#ifdef MUT_STRIPEFIRST
       bump(p) };
     atomic { intolog(p);
#else
       intolog(p) };
     atomic { bump(p);
#endif
       BYMSG(p,n); L[p].mu = 0; g = 0; n = 0; my = 0; r0 = 0; r1 = 0; v0 = 0; v1 = 0; c0 = 0; c1 = 0; cf = 0 }
#ifdef LTRIM                            /* a process may shorten its log */
  :: atomic { UNLOCKED(p) && L[p].num[0] > 0 ->
#ifndef MUT_LTRIMSAME
       V(L[p].floorv = (L[p].num[0] > L[p].floor -> L[p].numv[0] : L[p].floorv)); L[p].floor = MAX(L[p].floor, L[p].num[0]);
#endif
       L[p].num[0] = 0 }
#endif
  od }

#ifdef REORDER
active proctype Shuffle() { byte g, n, v; do :: atomic { len(msg[P]) > 1 -> msg[P]?g,n,v; msg[P]!g,n,v; g = 0; n = 0; v = 0 } od }
#endif

proctype Poller(byte p; byte polls) { byte a0, a1, f0, n, l, r0, r1, rf, v0, v1, vf; bool e, c0, c1, cf;
  do
  :: polls == 0 -> break
  :: polls > 0 -> polls--;
     atomic { a0 = acked[0]; a1 = acked[1]; f0 = fo; L[p].mending = L[p].mending || L[p].lost; L[p].lost = false };
#ifdef MUT_GRANTFIRST
     atomic { L[p].trust[0] = MAX(L[p].trust[0], a0); L[p].trust[1] = MAX(L[p].trust[1], a1) };
#endif
     if
     :: news(p);
        atomic {
          if :: f0 != fo -> a0 = MIN(a0, sacked[0]); a1 = MIN(a1, sacked[1]) :: else fi;
          L[p].trust[0] = MAX(L[p].trust[0], a0); L[p].trust[1] = MAX(L[p].trust[1], a1); L[p].mending = false }
     :: atomic { true -> L[p].lost = L[p].lost || L[p].mending; L[p].mending = false }      /* no reply */
     fi;
     atomic { a0 = 0; a1 = 0; f0 = 0 }
  od }

inline nokey() { kind = ABSENT; kver = 0; kknown = 0; kblk = 0; ktok = 0 }
inline noset() { fl = 0; S[0] = 0; S[1] = 0; V(flv = 0); V(Sv[0] = 0); V(Sv[1] = 0) }
#ifdef BEHIND
#define NOCOUNTER N = 0
#else
#define NOCOUNTER skip
#endif
proctype Loss() { byte evict = EVICT, evictn = EVICTN, flush = FLUSH, roll = ROLL, snap = ROLL;
  do
  :: atomic { evict > 0 && fl != 0 -> evict--; noset() }
  :: atomic { evictn > 0 -> evictn--; NOCOUNTER }
  :: atomic { flush > 0 -> flush--; noset(); NOCOUNTER; nokey() }
#ifdef LAG
  :: atomic { replica < db -> replica++ }
#endif
#if !defined(ENDS) && !defined(STAYS)
  :: atomic { kind != ABSENT -> nokey() }                /* expiry */
#endif
#if ROLL > 0
  :: atomic { snap > 0 && snap == roll -> snap--;        /* the last state that the replica has received */
       skind = kind; skver = kver; skknown = kknown; skblk = kblk; sktok = ktok; sS[0] = S[0]; sS[1] = S[1]; sfl = fl;
#ifdef BEHIND
       sN = N;
#endif
       sacked[0] = acked[0]; sacked[1] = acked[1] }
  :: atomic { roll > snap -> roll--;
#ifndef ROLLSET                         /* otherwise: the node of the set only */
       kind = skind; kver = skver; kknown = skknown; kblk = skblk; ktok = sktok;
#endif
#ifndef ROLLKEY                         /* otherwise: the node of the key only */
       S[0] = sS[0]; S[1] = sS[1]; fl = sfl; fo++;
#ifdef BEHIND
       N = sN;
#endif
       acked[0] = MIN(acked[0], sacked[0]); acked[1] = MIN(acked[1], sacked[1]);
#endif
       skind = 0; skver = 0; skknown = 0; skblk = 0; sktok = 0; sS[0] = 0; sS[1] = 0; sfl = 0 }
#endif
  od }
#ifdef ENDS                             /* when nothing can happen: all reads have ended, and no lease is left */
proctype End() { atomic { timeout -> assert(ended == READS && kind != LEASE) } }
#endif

init { atomic { byte i;
#ifndef BOOT
#ifdef NOMARK                           /* so far only Q has used the loader, without Groups */
  lastn = 1;
#else
  fl = 1; lastn = 1; mark = true;
#endif
#ifdef SEEN
  L[P].lastg = 2; L[Q].lastg = 2;
#endif
#ifndef NOMARK
  L[P].last = 1; L[P].floor = 1; L[Q].last = 1; L[Q].floor = 1;
#endif
#ifdef NEWP                             /* P knows nothing */
  L[P].last = 0; L[P].floor = 0;
#endif
#ifdef BAREQ
  L[Q].last = 0; L[Q].floor = 0;
#endif
#ifdef BEHIND
  N = 1;
#endif
#ifdef AFTER                            /* a failover has just lost numbers that Q knows */
  L[Q].last = 3; lastn = 3;
#endif
  if
#ifndef FULL
  :: true
#endif
#ifndef EMPTY                           /* what Redis has of the key at first; default: either */
  :: kind = ENTRY; kknown = 1; ktok = 99;
#if defined(NOMARK)
     kblk = BARE
#elif defined(BAREQ)
     if :: kblk = OWN :: kblk = BARE fi
#else
     kblk = OWN
#endif
#endif
  fi;
#endif
  i = 0; do :: i < FRESHP -> run Reader(P, true); i++ :: else -> break od;
  i = 0; do :: i < FRESHQ -> run Reader(Q, true); i++ :: else -> break od;
  i = 0; do :: i < PLAINP -> run Reader(P, false); i++ :: else -> break od;
  i = 0; do :: i < PLAINQ -> run Reader(Q, false); i++ :: else -> break od;
  i = 0; do :: i < WT -> run Writer(TOOL, true); i++ :: else -> break od;
  i = 0; do :: i < WP -> run Writer(P, true); i++ :: else -> break od;
  i = 0; do :: i < WQ -> run Writer(Q, true); i++ :: else -> break od;
  i = 0; do :: i < OTHER -> run Writer(TOOL, false); i++ :: else -> break od;
  run Handler(P);
  if :: MSGQ -> run Handler(Q) :: else fi;
  if :: POLLP > 0 -> run Poller(P, POLLP) :: else fi;
  if :: POLLQ > 0 -> run Poller(Q, POLLQ) :: else fi;
  run Loss();
#ifdef ENDS
  run End();
#else
  i = 0; do :: i < MEM -> run Hit(i); i++ :: else -> break od;
#endif
  i = 0 } }

/* Model G: the generation of a whole loader. One key; an entry carries the label (generation) that its loading process knew
   when its round began. Two processes, each with what it knows and whether a poll has confirmed it within the bound.
   Messages carry the new generation: lost, late, in any order. No memory tier here (channel.pml).
   POLLRULE 0: a reply raises what is known (maximum)      MSGRULE 0: a message raises it
            1: replies in the order in which the polls              1: a message that says something else is a doubt only
               were sent; an overtaken one is ignored               2: mutation, what comes last wins
            2: mutation, the last reply wins
   OWN: process 0 announces; the answer is what it knows from then on, and its own Gets that begin later see it */
#define ABSENT 0
#define ENTRY  1
#define LEASE  2
#ifndef R0
#define R0 1            /* readers in process 0 */
#endif
#ifndef R1
#define R1 1            /* readers in process 1 */
#endif
#ifndef NGET
#define NGET 1
#endif
#ifndef ALLW
#define ALLW 1          /* commit, InvalidateAll */
#endif
#ifndef KEYW
#define KEYW 0          /* commit, DEL */
#endif
#ifndef EVICT
#define EVICT 0         /* the field is lost */
#endif
#ifndef FLUSH
#define FLUSH 0         /* everything is lost */
#endif
#ifndef POLLS
#define POLLS 0         /* polls in the background, process 0 */
#endif
#ifndef POLLRULE
#define POLLRULE 0
#endif
#ifndef MSGRULE
#define MSGRULE 0
#endif
#ifndef MAXTOK
#define MAXTOK 4
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define W(x) assert(WITNESS != x)
#ifdef BACK
#define FIRST 5         /* after a loss numbers go on from 2: smaller, but none twice */
#else
#define FIRST 1
#endif
#if defined(MUT_ZERO) || defined(START0)
#define G0 0            /* no field at first, and entries labelled 0 */
#else
#define G0 FIRST
#endif
byte kind = ENTRY, kver, ktok, klab = G0, nexttok = 1, db, acked, allacked;
byte G = G0, lastg = FIRST;
byte known[2]; bool conf[2]; byte confA[2];       /* confA: ghost, InvalidateAll acknowledged when the poll was sent */
#ifndef LATEMSG
#define LATEMSG 0       /* process 0 will still get the message of the first generation */
#endif
byte msgs[2];                                     /* set of generations on their way */
byte ownacked;                                    /* ghost: acknowledged to process 0 */
byte out[2], overtaken[2];                        /* sets of polls: under way; overtaken by an accepted, later one */
byte evict = EVICT, flush = FLUSH;
#define CHK assert(kind != ENTRY || kver >= acked)
inline do_del() { kind = ABSENT; kver = 0; ktok = 0; klab = 0 }
inline lose() {
#ifdef BACK
  lastg = 1;
#endif
  G = 0 }
inline fresh() {
#ifdef MUT_ZERO
  G = G + 1
#else
  lastg++; G = lastg
#endif
}
#if defined(MUT_ZERO) || defined(NOCREATE)
#define CREATE false
#else
#define CREATE (G == 0)
#endif
/* s: a number of the caller, a bit of the sets. Leaves in as what was acknowledged at the sending */
inline poll(p, s) {
  atomic { as = allacked; before = out[p]; out[p] = out[p] | (1 << s) };
  atomic { if :: CREATE -> fresh() :: else fi; n = G };
#ifdef MUT_GRANTFIRST
  atomic { conf[p] = true; if :: as > confA[p] -> confA[p] = as :: else fi };
#endif
  atomic { out[p] = out[p] & ~(1 << s);
    if
#if POLLRULE == 0
    :: n > known[p] -> known[p] = n
#elif POLLRULE == 1
    :: !(overtaken[p] & (1 << s)) -> known[p] = n; overtaken[p] = overtaken[p] | (before & out[p])
#else
    :: true -> known[p] = n
#endif
    :: else
    fi;
    overtaken[p] = overtaken[p] & ~(1 << s); before = 0; n = 0 };
  atomic { conf[p] = true; if :: as > confA[p] -> confA[p] = as :: else fi } }

proctype Reader(byte p, s) { byte i, lo, own, need, L, k, v, kt, lab, tok, n, as, before; bool ok;
  do
  :: i == NGET -> break
  :: i < NGET -> i++; lo = acked;
#ifdef OWN
     atomic { if :: p == 0 -> own = ownacked :: else fi };
#endif
#ifdef MUT_KNOWNFIRST
     L = known[p];
     if :: atomic { conf[p] -> need = confA[p] } :: !conf[p] -> poll(p, s); need = as; L = known[p] fi;
     goto read;
#else
     if :: atomic { conf[p] -> need = confA[p] } :: !conf[p] -> poll(p, s); need = as fi;    /* in doubt: poll first */
#endif
round: L = known[p];
read: atomic { k = kind; v = kver; kt = ktok; lab = klab };
     tok = 0;
     if
     :: k == ENTRY && lab == L -> goto give
     :: k == ENTRY && lab > L ->
#ifdef MUT_HIGHHIT
        goto give
#else
        poll(p, s); L = known[p]; if :: as > need -> need = as :: else fi;
        if :: lab == L -> W(1); goto give :: else -> goto replace fi
#endif
     :: k == ENTRY && lab < L ->
#ifdef MUT_LOWHIT
        goto give;
#endif
replace: (nexttok < MAXTOK);                        /* prunes */
        atomic { if
#ifdef MUT_BLIND
          :: true ->
#else
          :: kind == ENTRY && ktok == kt ->
#endif
             W(2); do_del(); kind = LEASE; tok = nexttok; nexttok++; ktok = tok
          :: else fi }
     :: k == ABSENT -> (nexttok < MAXTOK);
        atomic { if :: kind == ABSENT -> kind = LEASE; tok = nexttok; nexttok++; ktok = tok :: else fi }
     :: k == LEASE -> skip
     fi;
     if :: tok == 0 -> goto read :: else fi;
     v = db;
#ifdef MUT_LABELLATE
     L = known[p];
#endif
     atomic { if :: kind == LEASE && ktok == tok -> kind = ENTRY; kver = v; klab = L; ok = true; CHK :: else -> ok = false fi };
     if :: ok -> skip :: else -> goto round fi;
give: atomic { assert(v >= lo);                     /* (a) nothing from before an acknowledged Invalidate of the key */
       assert(v >= own);                            /* (c) nor from before an InvalidateAll of its own process */
       assert(v >= need);                           /* (b) nor from before an InvalidateAll acknowledged before the poll */
       if :: need > 0 && tok == 0 -> W(3) :: else fi;
       lo = 0; own = 0; need = 0; L = 0; k = 0; v = 0; kt = 0; lab = 0; tok = 0; as = 0; ok = false }
  od }

proctype All() { byte my, n;
  atomic { db++; my = db };
  atomic { fresh(); n = G; msgs[0] = msgs[0] | (1 << G); msgs[1] = msgs[1] | (1 << G) };
#ifdef OWN
  atomic {
#ifndef MUT_OWNLATER
    if :: n < known[0] -> conf[0] = false :: else fi; known[0] = n;
#endif
    if :: my > ownacked -> ownacked = my :: else fi };
#endif
  atomic { if :: my > allacked -> allacked = my :: else fi } }
proctype KeyW() { byte my;
  atomic { db++; my = db };
  atomic { do_del() };
  atomic { if :: my > acked -> acked = my :: else fi; CHK } }

active proctype Messages() { byte p, g;
  do
  :: atomic { if :: msgs[0] -> p = 0 :: msgs[1] -> p = 1 fi;
       g = 0; do :: g < 7 -> g++; if :: msgs[p] & (1 << g) -> break :: true -> skip fi :: g >= 7 -> break od;
       if :: msgs[p] & (1 << g) -> msgs[p] = msgs[p] & ~(1 << g);
#if MSGRULE == 0
             if :: g > known[p] -> known[p] = g :: else fi
#elif MSGRULE == 1
             if :: g != known[p] -> conf[p] = false :: else fi
#else
             known[p] = g
#endif
          :: else fi; p = 0; g = 0 }
  od }
proctype Background() { byte i, n, as, before;
  do :: i == POLLS -> break :: i < POLLS -> i++; poll(0, 3); as = 0 od }
active proctype World() {
  do
  :: atomic { conf[0] -> conf[0] = false }                /* the bound has passed */
  :: atomic { conf[1] -> conf[1] = false }
  :: atomic { kind != ABSENT -> do_del() }                /* expiry */
  :: atomic { evict > 0 -> evict--; lose() }
  :: atomic { flush > 0 -> flush--; lose(); do_del() }
  od }
init { atomic { byte i;
  msgs[0] = LATEMSG * (1 << FIRST);
  i = 0; do :: i < R0 -> run Reader(0, i); i++ :: else -> break od;
  i = 0; do :: i < R1 -> run Reader(1, i); i++ :: else -> break od;
  i = 0; do :: i < ALLW -> run All(); i++ :: else -> break od;
  i = 0; do :: i < KEYW -> run KeyW(); i++ :: else -> break od;
  if :: POLLS > 0 -> run Background() :: else fi; i = 0 } }

/* Writers' holds: the key, and beside it the set of those who hold it. Each command of Redis is one atomic step on one key, as in internal/channel/hold.go and
   internal/lease/hold.go; only the take, the claim and the exchange see both keys.
   A strict writer: ZADD his token; put his mark into the key (which voids what is there); Check; commit; WT: exchange the mark for the entry, if he may; else DEL the key, then ZREM
   his token. He may be killed after each step (KILLS). Plain writers commit, LAG: ZADD lag, DEL. Readers GET, take, load, fill; a mark or a hold has them load for themselves; REFRESH: they claim the entry that they have
   found. Whatever can end by itself does so at any time: but a hold only when its owner is dead, the lag's when the replica has caught up; LOSSES: a writer's hold, before he has asked (Check).
   LATE: a writer's ZADD and mark may get no reply, and come later or never; he asks again under another token.
   REPLICA: what is loaded under a lease or a claim is any version from rep on; what is loaded without is db. See README.md for what is checked. */
#define ABSENT 0
#define ENTRY  1
#define LEASE  2
#define MARK   3
#ifndef READERS
#define READERS 2
#endif
#ifndef NGET
#define NGET 1
#endif
#ifndef STRICTS
#define STRICTS 2
#endif
#ifndef PLAINS
#define PLAINS 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef LOSSES
#define LOSSES 0
#endif
#ifndef LATES
#define LATES 0
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define W(x) assert(WITNESS != x)                     /* WITNESS=x: shows that this place is reached */
#define LAGS 16                                       /* the member of those who are behind */

byte kind = ENTRY, kver, ktok = 1;                    /* ktok: of the lease or claim, the entry's stamp, or whose mark */
byte holds;                                           /* the set: a bit for each token */
byte over;                                            /* those of them whose hold has ended, though they have not left */
byte owned;                                           /* those of them whose owner lives, and renews */
byte sure;                                            /* of those, whose owner has asked whether he still has it */
byte T[2], S[2];                                      /* of each reader: his token, the stamp that he has read */
byte db, rep, lagver;
byte acked, committed, seen;                          /* newest version acknowledged; committed by a strict writer; returned by a finished read */
byte kills = KILLS, losses = LOSSES, lates = LATES;
byte lz[2], lm[2];                                    /* what comes late: ZADD, mark */
byte c;

#ifdef REPLICA
inline read_db(v) { v = rep; do :: v < db -> v++ :: break od }
#else
inline read_db(v) { v = db }
#endif

#define CHK assert(kind != ENTRY || kver >= acked)    /* promise 1 */
inline gone() { kind = ABSENT; kver = 0; ktok = 0 }
#define USED(t) (ktok == t || T[0] == t || T[1] == t || S[0] == t || S[1] == t)
#define TOKEN(t) t = 0; c = 64; do :: USED(c) -> c++ :: else -> break od; t = c; c = 0

#ifdef MUT_TAKEHELD
#define TAKEHELD false
#else
#define TAKEHELD (holds & ~over)
#endif
#ifdef MUT_CLAIMHELD
#define CLAIMHELD false
#else
#define CLAIMHELD (holds & ~over)
#endif

#ifdef MUT_CLAIMMARKED
#define CLAIMMARKED false
#else
#define CLAIMMARKED (kind == MARK)
#endif

/* A read returns x. Nothing older than what was acknowledged, committed by a strict writer, or returned by a finished read when it began. */
inline ret(x) { atomic {
    assert(x >= lo);
#ifndef REPLICA
    assert(x >= slo);
#ifndef NOLIN
    assert(x >= lin);
#endif
    if :: x > seen -> seen = x :: else fi
#endif
  } }

proctype Reader(byte me) {
  byte n, lo, slo, lin, v;
  do
  :: n == NGET -> break
  :: n < NGET -> atomic { n++; lo = acked; slo = committed; lin = seen };
#ifdef REFRESH
     if :: true -> goto refresh :: true -> skip fi;
#endif
again: atomic {                                       /* GET */
       if
       :: kind == ENTRY -> v = kver; S[me] = ktok; goto hit
       :: kind == LEASE -> goto again
       :: kind == MARK -> W(1); goto alone
       :: kind == ABSENT -> skip
       fi };
     atomic {                                         /* take */
       if
       :: kind == ENTRY -> v = kver; S[me] = ktok; goto hit
       :: kind == LEASE -> goto again
       :: kind == MARK -> goto alone
       :: kind == ABSENT && TAKEHELD -> W(2); goto alone
       :: kind == ABSENT && !TAKEHELD -> TOKEN(T[me]); kind = LEASE; ktok = T[me]
       fi };
load: read_db(v);
     atomic {                                         /* fill */
       if
       :: (kind == LEASE || kind == ENTRY) && ktok == T[me] -> kind = ENTRY; kver = v; CHK
       :: else -> W(3); T[me] = 0; v = 0; goto again  /* refused */
       fi };
     goto out;
hit: skip;
#ifdef REFRESH
     if
     :: true -> skip
     :: atomic { true ->                              /* claim, in the background: the value is given out */
          ret(v); lo = 0; slo = 0; lin = 0; v = 0;
          if :: kind == ENTRY && ktok == S[me] && !CLAIMHELD -> TOKEN(T[me]); ktok = T[me] :: else -> goto next fi };
        read_db(v);
        atomic { if :: (kind == LEASE || kind == ENTRY) && ktok == T[me] -> kind = ENTRY; kver = v; CHK :: else fi };
        goto next
     fi;
#endif
     goto out;
#ifdef REFRESH
refresh: atomic {                                     /* a claim of whatever there is */
       if
       :: CLAIMHELD || CLAIMMARKED -> goto alone
       :: else ->
          if
          :: kind == LEASE -> goto refresh
          :: kind == ENTRY -> TOKEN(T[me]); ktok = T[me]
          :: else -> TOKEN(T[me]); kind = LEASE; ktok = T[me]; kver = 0
          fi
       fi };
     read_db(v);
     atomic {
       if
       :: (kind == LEASE || kind == ENTRY) && ktok == T[me] -> kind = ENTRY; kver = v; CHK; goto out
       :: else -> T[me] = 0; v = 0; goto refresh
       fi };
#endif
alone: v = db;
out: ret(v);
next: atomic { v = 0; lo = 0; slo = 0; lin = 0; T[me] = 0; S[me] = 0 }
  od }

#define DIE if :: atomic { kills > 0 -> kills--; owned = owned & ~tok; sure = sure & ~tok; tok = 0; goto out } :: true -> skip fi

inline do_mark(t) {
#ifdef MUT_UNMARKED
    skip
#else
    kind = MARK; ktok = t; kver = 0
#endif
  }
inline zadd(t) {                                      /* a writer who comes drops those whose hold has ended */
#ifdef MUT_LAGDROPS
  holds = holds & ~over; over = 0;
#else
  if :: t != LAGS -> holds = holds & ~over; over = 0 :: else fi;
#endif
  holds = holds | t; over = over & ~t }
inline left(t) {                                      /* with the last hold the set ends */
  holds = holds & ~(t); over = over & ~(t);
  if :: !(holds & ~over) -> holds = 0; over = 0 :: else fi }
#ifdef MUT_FORGETOVER
inline ends(t) { left(t) }
#else
inline ends(t) { over = over | (t); left(0) }
#endif

#ifdef MUT_EXCHANGEUNMARKED
#define MARKED (kind != LEASE)
#else
#define MARKED (kind == MARK && ktok == tok)
#endif
#ifdef MUT_EXCHANGECROWD
#define SINGLE (holds & ~over & tok)
#else
#define SINGLE ((holds & ~LAGS) == tok && !(over & tok))
#endif
proctype Strict(byte me) {
  byte tok, my;
  atomic { tok = 1 << me; owned = owned | tok };
#if LATES > 0
  if
  :: atomic { lates > 0 -> lates--; lz[me] = tok; lm[me] = tok;     /* no reply to either: they may come, or one of them, or none */
#ifndef MUT_TOKENAGAIN
       owned = owned & ~tok; tok = 4 << me; owned = owned | tok
#endif
     }
  :: true -> skip
  fi;
#endif
#ifdef MUT_MARKFIRST
  atomic { do_mark(tok) }; DIE;
  atomic { zadd(tok) }; DIE;
#else
  atomic { zadd(tok) }; DIE;
  atomic { do_mark(tok) }; DIE;
#endif
  atomic {                                            /* Check: not lost since; nor from now on */
#ifndef MUT_CHECKBLIND
    if :: (holds & ~over) & tok -> sure = sure | tok :: else -> W(4); goto release fi
#else
    sure = sure | tok
#endif
  };
  DIE;
  if :: true -> skip :: true -> goto release fi;      /* rolled back */
#ifdef ADRIFT
  if                                                  /* the outcome of the commit is not known: abandoned, and it may come until the hold ends */
  :: atomic { kills > 0 -> kills--; owned = owned & ~tok; sure = sure & ~tok };
     atomic { (holds & ~over & tok) -> W(8); db++; committed = db; tok = 0; goto out }
  :: true -> skip
  fi;
#endif
  atomic { db++; my = db; committed = db };
  DIE;
#ifdef WT
  if
  :: true -> atomic {
     if
     :: MARKED && SINGLE -> W(5); TOKEN(ktok); kind = ENTRY; kver = my; left(tok); owned = owned & ~tok; sure = sure & ~tok;
#ifdef LAG
        zadd(LAGS); lagver = db;            /* what is loaded when the entry has gone may be from before */
#endif
        if :: my > acked -> acked = my :: else fi; CHK; tok = 0; my = 0; goto out
     :: else -> W(6)
     fi }
  :: true -> skip
  fi;
  DIE;
#endif
release: skip;
#ifdef MUT_LEAVEFIRST
  atomic { left(tok) }; DIE;
  atomic { gone() };
#else
#ifdef LAG
  atomic { zadd(LAGS); lagver = db };
#endif
  atomic { gone() }; DIE;
#ifdef MUT_ENDTOGETHER
  atomic { holds = 0; over = 0 };
#else
  atomic { left(tok) };
#endif
#endif
  atomic { owned = owned & ~tok; sure = sure & ~tok; if :: my > acked -> acked = my :: else fi; CHK; tok = 0; my = 0 };
out: skip }

proctype Plain() { byte my;
  atomic { db++; my = db };
#ifdef LAG
  atomic { zadd(LAGS); lagver = db };
#endif
  atomic { gone() };
  atomic { if :: my > acked -> acked = my :: else fi; CHK; my = 0 } }

active proctype Time() { byte b = 1;
  do
  :: atomic { kind != ABSENT -> gone() }
  :: atomic { b = 1; do :: b < 16 -> if :: (holds & ~over & b) && !(owned & b) -> ends(b); break :: else -> b = b << 1 fi :: else -> break od; b = 1 }
  :: atomic { losses > 0 && (holds & ~over & owned & ~sure) -> losses--; ends(holds & ~over & owned & ~sure) }
#ifdef LOSESURE
  :: atomic { losses > 0 && (holds & owned) -> losses--; holds = 0; over = 0; gone() }
#endif
#ifdef REPLICA
  :: atomic { (holds & ~over & LAGS) && rep >= lagver -> ends(LAGS); lagver = 0 }
  :: atomic { rep < db -> rep++ }
#endif
  od }

#if LATES > 0
proctype Net(byte i) {
  do
  :: atomic { lz[i] -> if :: true -> zadd(lz[i]) :: true -> skip fi; lz[i] = 0 }
  :: atomic { lm[i] && !lz[i] -> if :: true -> W(7); do_mark(lm[i]) :: true -> skip fi; lm[i] = 0 }
  od }
#endif

init { atomic { byte i;
  if :: true -> skip :: gone() fi;                    /* an entry of version 0, or nothing */
  i = 0; do :: i < READERS -> run Reader(i); i++ :: else -> break od;
  i = 0; do :: i < STRICTS -> run Strict(i); i++ :: else -> break od;
  i = 0; do :: i < PLAINS -> run Plain(); i++ :: else -> break od;
#if LATES > 0
  run Net(0); run Net(1);
#endif
  i = 0 } }

/* The generations of a Bloom filter in Redis, for one key: the row r, and the one segment of each generation that it lives in. Each command
   of Redis is one atomic step. The descriptor D (0: there is none) names Active, Building (ready or not) and Old; a generation is a bit
   of H (its segment exists, with its header), of B (r's bits are set in it), of cur (its saved cursor is past r).
   Adders Admit, commit, and call committed; or add a row that is committed already (PLAIN). Rebuilders do one Rebuild each, or more (ROUNDS), at the same time
   or one after the other: there is no lock. A reader looks up for ever, with a D that it reads again or not. Who is killed is who never goes on: no step of its own is
   needed. Segments, D, and all of it get lost. See README.md for what is checked. */
#ifndef ADMITS
#define ADMITS 1        /* transactions that insert the row */
#endif
#ifndef PLAINS
#define PLAINS 0        /* adds of the row after somebody's commit */
#endif
#ifndef REBUILDERS
#define REBUILDERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 1        /* Rebuilds of each, one after the other */
#endif
#ifndef NG
#define NG 3            /* generations in all; the first is there, or there is no filter */
#endif
#ifndef EVICT
#define EVICT 0         /* segments that get lost */
#endif
#ifndef FLUSH
#define FLUSH 0         /* times that everything gets lost */
#endif
#ifndef DLOSS
#define DLOSS 0         /* times that only D gets lost: evicted, deleted, or its node flushed */
#endif
#ifndef LATES
#define LATES 0         /* commands that make a segment, and are carried out after they were given up */
#endif
#ifndef BACK
#define BACK 0          /* failovers that set D back to what it was before its last change */
#endif
#ifndef BITLOSS
#define BITLOSS 0       /* failovers, or restarts, that forget r's bits in a segment, and keep the segment */
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define W(x) assert(WITNESS != x)                     /* WITNESS=x: shows that this place is reached */

#define BIT(g) (1 << ((g) - 1))
#define SET(g) ((g) == 0 -> 0 : (1 << ((g) - 1)))
#define ENC(a,b,r,o) (2048 + (a) + ((b) << 3) + ((r) << 6) + ((o) << 7))
#define ACT(d) ((d) & 7)
#define BLD(d) (((d) >> 3) & 7)
#define RDY(d) (((d) >> 6) & 1)
#define OLD(d) (((d) >> 7) & 15)
#define READY(d) (RDY(d) -> SET(BLD(d)) : 0)
/* what an add writes to */
#ifdef MUT_ADDOLD
#define NAMES(d) (SET(ACT(d)) | READY(d))
#else
#define NAMES(d) (SET(ACT(d)) | READY(d) | OLD(d))
#endif

short D, D0;                                          /* D0: what everybody has cached when it begins */
byte H, B, cur, next = 2;                             /* next: ids are never used again */
bool row, acked;                                      /* r is committed; and some committed, or Add, has returned nil */
byte wr[3]; bool op[3];                               /* of each adder: generations written; its transaction is open */
byte act;                                             /* Active of the D that the reader has cached */
byte evict = EVICT, flush = FLUSH, dloss = DLOSS;
#if BACK > 0
short prev; byte back = BACK;
#define NOTE prev = D
#else
#define NOTE skip
#endif
#if BITLOSS > 0
byte bitloss = BITLOSS;
#endif
#if LATES > 0
byte lates = LATES, late;
#endif
#ifdef COMMIT
#define PROMISED row                                  /* stronger: found from the commit on, even if who inserts is killed then */
#else
#define PROMISED acked
#endif

inline lose(m) { H = H & ~(m); B = B & ~(m) }
#ifdef MUT_RECREATE
inline put(g) { H = H | BIT(g); B = B | BIT(g) }
#else
inline put(g) { if :: H & BIT(g) -> B = B | BIT(g) :: else fi }
#endif
#ifdef NX
inline make(g) { if :: H & BIT(g) -> skip :: else -> H = H | BIT(g) fi }
#else
inline make(g) { H = H | BIT(g); B = B & ~BIT(g) }
#endif
#ifdef MUT_CAS
inline cas(was, is) { ok = true; NOTE; D = is }
#else
inline cas(was, is) { ok = (D == was); if :: ok -> NOTE; D = is :: !ok -> W(7) fi }
#endif

/* TRUST: a cached D runs out, and who finds none in Redis waits until all that may be cached have */
#if defined(TRUST) && !defined(MUT_TRUSTADD)
#define WAITED (D != 0 || act == 0)
#else
#define WAITED true
#endif
#if defined(TRUST) && !defined(MUT_TRUSTCREATE)
#define WAITEDCREATE (D != 0 || act == 0)
#else
#define WAITEDCREATE true
#endif
#ifdef MUT_REREADSTALE
inline read_d() { if :: true -> p = NAMES(D) & ~wr[me] :: true -> p = NAMES(D0) & ~wr[me] fi }      /* from a replica of Redis that lags */
#else
inline read_d() { p = NAMES(D) & ~wr[me] }
#endif
inline write_one() {                                  /* one of the generations that are to be written, in any order */
  if
  :: p & 1 -> put(1); wr[me] = wr[me] | 1; p = p & ~1
  :: p & 2 -> put(2); wr[me] = wr[me] | 2; p = p & ~2
  :: p & 4 -> put(3); wr[me] = wr[me] | 4; p = p & ~4
  :: p & 8 -> put(4); wr[me] = wr[me] | 8; p = p & ~8
  fi }

proctype Adder(byte me; bool plain) {
  byte p;                                             /* what the D that was read names, and is not written */
  atomic { if :: plain -> row = true :: else -> op[me] = true fi;
#ifdef MUT_READFIRST
    };
  atomic { read_d()
#else
    if :: true -> p = NAMES(D0) :: true -> p = NAMES(D) fi      /* the D that it knows */
#endif
  };
add:
  do
  :: atomic { p != 0 -> write_one() }
  :: atomic { p == 0 && WAITED ->
#if defined(MUT_NOREREAD) || defined(MUT_READFIRST)
       goto added
#else
       read_d(); if :: p != 0 -> skip :: else -> goto added fi
#endif
     }
  od;
added:
  if :: plain -> goto ack :: else fi;
  atomic { row = true; op[me] = false };              /* commit */
#ifndef MUT_NOCOMMITTED
  atomic { WAITED -> read_d(); if :: p == 0 -> goto ack :: else -> W(5) fi };
  do
  :: atomic { p != 0 -> write_one() }
  :: atomic { p == 0 && WAITED ->
#ifdef MUT_READFIRST
       goto ack
#else
       read_d(); if :: p != 0 -> skip :: else -> goto ack fi
#endif
     }
  od;
#endif
ack: atomic { acked = true; wr[me] = 0; p = 0 }
}

#ifdef SETTLE
#define STAYS(i,g) (op[i] && !(wr[i] & BIT(g)))       /* was admitted before g was ready, and has not ended */
#define SETTLED(g) (!STAYS(0,g) && !STAYS(1,g) && !STAYS(2,g))
#else
#define SETTLED(g) true
#endif

#ifdef MUT_DROP
#define REPLACED(d) 0                                 /* a Building that is replaced is not removed */
#else
#define REPLACED(d) SET(BLD(d))
#endif

proctype Rebuilder() {
  short d, n; byte g, rounds; bool x, ok, last;
  rounds = ROUNDS;
start:
  atomic { d = D; n = 0; g = 0; x = false; ok = false;
    if
    :: OLD(d) != 0 -> goto clean                      /* what a rebuild before has left */
    :: BLD(d) != 0 && RDY(d) -> W(3); g = BLD(d); goto resume
#ifdef MUT_RESUMEUNREADY
    :: BLD(d) != 0 && !RDY(d) -> g = BLD(d); goto making
#endif
    :: true -> skip
    fi };
create: atomic { WAITEDCREATE;                         /* takes the place of a Building that there is */
#ifdef MUT_REUSE
    g = 1;
    do
    :: g < NG && ((SET(ACT(d)) | SET(BLD(d)) | OLD(d)) & BIT(g)) -> g++
    :: else -> break
    od;
    if :: (SET(ACT(d)) | SET(BLD(d)) | OLD(d)) & BIT(g) -> goto done :: else fi;
    cur = cur & ~BIT(g);
#else
    if :: next > NG -> goto done :: else fi;
    g = next;
#endif
#ifdef MUT_READYEARLY
    n = ENC(ACT(d), g, 1, OLD(d) | REPLACED(d));
#else
    n = ENC(ACT(d), g, 0, OLD(d) | REPLACED(d));
#endif
    cas(d, n);
    if :: ok -> next++; d = n; n = 0; ok = false :: else -> goto start fi };
making: atomic {
    if
    :: true -> make(g)
#if LATES > 0
    :: lates > 0 && late == 0 -> lates--; late = g;   /* no reply: nobody knows when it comes, so the generation is given up */
#ifdef MUT_RETRYMAKE
       goto making
#else
       d = D; if :: BLD(d) == g -> g = 0; goto create :: else -> goto start fi
#endif
#endif
    fi };
#ifndef MUT_READYEARLY
#ifdef MUT_SCANEARLY
  atomic { x = row };
#endif
mark: atomic { n = ENC(ACT(d), g, 1, OLD(d)); cas(d, n);
    if
    :: ok -> d = n; n = 0; ok = false
    :: else -> d = D; n = 0; if :: BLD(d) == g && !RDY(d) -> goto mark :: else -> goto start fi
    fi };
#endif
resume: skip;
#ifdef MUT_RESUMEMAKE
  atomic { if :: H & BIT(g) -> skip :: else -> make(g) fi };
#endif
  atomic { SETTLED(g) -> skip };
#ifdef MUT_CURSORSHARED
  atomic { if :: cur != 0 -> goto swap :: else fi };
#else
  atomic { if :: cur & BIT(g) -> goto swap :: else fi };
#endif
#ifdef MUT_CURSOREARLY
  atomic { cur = cur | BIT(g); x = row };
  atomic { if :: x -> put(g) :: else fi; x = false };
#else
#ifdef SCANLAG
  atomic { if :: true -> x = row :: true -> skip fi };
#elif !defined(MUT_SCANEARLY)
  atomic { x = row };                                 /* the source's page */
#endif
  atomic { if :: x -> put(g) :: else fi; x = false };
  atomic { cur = cur | BIT(g) };
#endif
swap: skip;
#ifndef MUT_SWAPCHECK
  atomic { if :: H & BIT(g) -> skip :: else -> W(6); d = D; if :: BLD(d) == g -> g = 0; goto create :: else -> goto start fi fi };
#endif
  atomic { n = ENC(g, 0, 0, OLD(d) | SET(ACT(d))); cas(d, n);
    if
    :: ok -> W(2); n = 0; ok = false
    :: else -> d = D; n = 0;
       if :: BLD(d) == g && RDY(d) -> goto swap :: ACT(d) == g -> skip :: else -> goto start fi
    fi };
  last = true;
fin: atomic { d = D; n = 0; if :: OLD(d) == 0 -> goto done :: else fi };
clean:
#ifdef MUT_OLDEARLY
  atomic { n = ENC(ACT(d), BLD(d), RDY(d), 0); cas(d, n); if :: ok -> skip :: last -> goto fin :: else -> goto start fi };
  atomic { lose(OLD(d)) };
#else
  atomic { lose(OLD(d)) };
  atomic { n = ENC(ACT(d), BLD(d), RDY(d), 0); cas(d, n); if :: ok -> skip :: !ok && last -> goto fin :: !ok && !last -> goto start fi };
#endif
  if :: last -> skip :: else -> goto start fi;
done: atomic { d = 0; n = 0; g = 0; x = false; ok = false; last = false; rounds--; if :: rounds > 0 -> goto start :: else fi }
}

/* It looks up for ever; of the D that it has cached, Active counts. A lookup that begins as it asks is the strictest, and to read D again after a
   wrong header and to ask once more is the same as a lookup with another D: so a lookup is one step. With FRESH it reads D, then
   asks; with CHECKD it asks, then reads D, which must still have this generation as Active. */
inline absent(a) { assert(!(a)); if :: !row -> W(1) :: else fi; if :: act != ACT(D) -> W(4) :: else fi }
#ifdef MUT_HEADER
#define NOTFOUND (act != 0 && !(B & SET(act)))
#else
#define NOTFOUND (act != 0 && (H & SET(act)) && !(B & SET(act)))
#endif
active proctype Reader() {
  bool a;
  do
#if defined(FRESH)
  :: atomic { a = PROMISED; act = ACT(D) };
     atomic { if :: NOTFOUND -> absent(a) :: else fi; a = false }
#elif defined(CHECKD)
  :: atomic { act != ACT(D) -> act = ACT(D) }
  :: atomic { NOTFOUND -> a = PROMISED };
     atomic { if :: ACT(D) == act -> absent(a) :: else fi; a = false }
#else
#ifdef TRUST
  :: atomic { act != 0 -> act = 0 }                   /* a cached D runs out */
#endif
  :: atomic { act != ACT(D) -> act = ACT(D) }
  :: atomic { NOTFOUND -> absent(PROMISED) }
#endif
  od
}

#if EVICT > 0 || FLUSH > 0 || DLOSS > 0 || LATES > 0 || BACK > 0 || BITLOSS > 0 || defined(MUT_RECREATE)
active proctype Environment() {
  do
  :: atomic { evict > 0 && (H & 1) -> evict--; lose(1) }
  :: atomic { evict > 0 && (H & 2) -> evict--; lose(2) }
  :: atomic { evict > 0 && (H & 4) -> evict--; lose(4) }
  :: atomic { evict > 0 && (H & 8) -> evict--; lose(8) }
  :: atomic { flush > 0 -> flush--; H = 0; B = 0; cur = 0; NOTE; D = 0 }
  :: atomic { dloss > 0 && D != 0 -> dloss--; NOTE; D = 0 }
#if LATES > 0
  :: atomic { late != 0 -> make(late); late = 0 }
#endif
#if BACK > 0
  :: atomic { back > 0 -> back--; D = prev }
#endif
#if BITLOSS > 0
  :: atomic { bitloss > 0 && B != 0 -> bitloss--; B = 0 }
#endif
#ifdef MUT_RECREATE
  :: atomic { NAMES(D) != 0 -> H = H | NAMES(D) }     /* an add of another key of the segment */
#endif
  od }
#endif

init { atomic { byte i;
  if
  :: true -> D0 = ENC(1, 0, 0, 0); H = 1
  :: true -> D0 = 0
  fi;
  D = D0; act = ACT(D0);
#if BACK > 0
  prev = D;
#endif
  i = 0;
  do :: i < ADMITS -> run Adder(i, false); i++ :: else -> break od;
  do :: i < ADMITS + PLAINS -> run Adder(i, true); i++ :: else -> break od;
  i = 0;
  do :: i < REBUILDERS -> run Rebuilder(); i++ :: else -> break od;
  i = 0 } }

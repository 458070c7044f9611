/* The memory tier of process P behind generations, with a channel that may be lost. Redis is the protocol without lost
   replies. Writers are remote (commit, DEL, PUBLISH, ack) or in P (the same and a bump).

   With OUTAGES, P may be unable to reach Redis. OWN: what it loads meanwhile without a lease goes into memory, marked as its
   own, and is served although nothing can be heard. Its end, MaxStaleness after the beginning of its load, is not a step
   (an item may go at any time): what is checked is that it is never older than what was acknowledged when its load began,
   which is what that end makes the bound of. A writer in P that does not reach Redis bumps, and returns an error: lended. */
#define ABSENT 0
#define ENTRY  1
#define LEASE  2
#define HOLD   3
#ifndef NGET
#define NGET 1
#endif
#ifndef READERS
#define READERS 2
#endif
#ifndef REMOTE
#define REMOTE 1
#endif
#ifndef LOCALW
#define LOCALW 0
#endif
#ifndef OUTAGES
#define OUTAGES 0
#endif
byte kind = ENTRY, kver, ktok, nexttok = 1, db, acked, lacked, lended;
byte gen;                       /* stripe + global: only the sum matters */
bool sub = true, trusted = true;    /* the subscription as Redis sees it; what P believes */
bool gap;                       /* an outage that P has not noticed yet: exempt, this is the documented bound */
byte pend;                      /* messages on their way to P */
byte outages = OUTAGES;
bool mp; byte mver, mgen;       /* the memory tier: one slot */
bool mown; byte mfrom;          /* its own, and what was acknowledged when its load began */
bool cut;                       /* P cannot reach Redis */
chan sets = [2] of { byte, byte, bool, byte };
#define CHK assert(kind != ENTRY || kver >= acked)
inline do_del() { kind = ABSENT; kver = 0; ktok = 0 }
inline publish() { if :: sub -> pend++ :: else fi }
#ifdef MUT_NOGEN
#define FRESH(g) true
#else
#define FRESH(g) (g == gen)
#endif

#ifdef WITNESS
#define WITNESSED true
#else
#define WITNESSED false
#endif

proctype Reader() {
  byte n = 0, v, g, k, kt, tok, from; bool ok, own;
  do
  :: n == NGET -> break
  :: n < NGET -> n++;                                                             /* a miss */
#ifdef MUT_GENLATE
        atomic { k = kind; v = kver; kt = ktok }; g = gen;
#else
        g = gen;
again:  skip;
#ifdef OWN
        if
        :: cut ->                                                /* noticed: without a lease */
#ifdef MUT_OWNGENLATE
           from = acked; v = db; g = gen; own = true; goto store
#elif defined(MUT_OWNEND)
           v = db; from = acked; own = true; goto store          /* the end is counted from the end of the load */
#else
           from = acked; v = db; own = true; goto store
#endif
        :: else
        fi;
#endif
        atomic { if :: cut -> k = LEASE :: else -> k = kind; v = kver; kt = ktok fi };
#endif
        if
        :: k == ENTRY -> skip
        :: k == LEASE || k == HOLD -> goto next
        :: k == ABSENT ->
           atomic { if :: kind == ABSENT && !cut -> tok = nexttok; nexttok++; kind = LEASE; ktok = tok; kver = 0 :: else -> tok = 0 fi };
           if :: tok == 0 -> goto next :: else fi;
           v = db;
           atomic { if :: kind == LEASE && ktok == tok && !cut -> kind = ENTRY; kver = v; ok = true; CHK :: else -> ok = false fi };
#ifndef STOREREFUSED
           if :: ok -> skip :: else -> goto next fi
#endif
        fi;
store:  if
        :: len(sets) < 2 -> sets!v,g,own,from
        :: true -> skip
        fi;
next: atomic { v = 0; g = 0; k = 0; kt = 0; tok = 0; ok = false; own = false; from = 0 }
  od }

/* a Get that begins now and hits */
active proctype Hit() {
  do
#ifdef OWN
  :: atomic { !trusted && mp && mown && FRESH(mgen) ->
       assert(mver >= lacked);                     /* nor than its own writes that could not be acknowledged */
       assert(mver >= lended);
       assert(mver >= mfrom) }                     /* promise 4: the bound, from the beginning of the load */
  :: atomic { WITNESSED && !trusted && mp && mown && FRESH(mgen) && acked > mver -> assert(false) }
#endif
  :: atomic { trusted && mp && FRESH(mgen) ->
       assert(mver >= lacked);                     /* the same process: never older than its own acknowledged writes */
#ifdef LITERAL1
       assert(mver >= acked) }                     /* promise 1 to the letter */
#else
       assert(gap || pend > 0 || mver >= acked) }  /* promise 4: nothing unheard, then nothing stale */
#endif
  od }

/* ristretto: applies sets late, in any order, or drops them */
active [2] proctype Buffer() { byte v, g, from; bool own;
  do :: sets?v,g,own,from -> if :: true -> skip :: atomic { true -> mp = true; mver = v; mgen = g; mown = own; mfrom = from } fi;
        atomic { v = 0; g = 0; own = false; from = 0 }
     :: atomic { mp -> mp = false; mver = 0; mgen = 0; mown = false; mfrom = 0 } od }

proctype Remote() { byte my;
  atomic { db++; my = db };
#ifdef MUT_PUBFIRST
  atomic { publish() }; atomic { do_del() };
#else
  atomic { do_del() };
#if defined(MUT_NOPUB)
  skip;
#elif defined(MUT_LOSTPUB)
  atomic { if :: true -> publish() :: true -> skip fi };
#else
  atomic { publish() };
#endif
#endif
  atomic { if :: my > acked -> acked = my :: else fi; CHK } }

proctype Local() { byte my;
  atomic { db++; my = db };
#ifdef OWN
  if
  :: cut ->                                                      /* DEL fails */
#ifndef MUT_NOFAILBUMP
     gen++;
#endif
     atomic { if :: my > lended -> lended = my :: else fi }; goto out
  :: !cut -> skip
  fi;
#endif
#if defined(MUT_BUMPFIRST)
  gen++; atomic { do_del() };
#elif defined(MUT_BUMPLATE)
  atomic { do_del() }; atomic { publish() };
  atomic { if :: my > acked -> acked = my :: else fi; if :: my > lacked -> lacked = my :: else fi; CHK };
  gen++; goto out;
#elif defined(MUT_NOBUMP)
  atomic { do_del() };
#else
  atomic { do_del() }; gen++;
#endif
#ifndef MUT_LOCALNOPUB
  atomic { publish() };
#endif
  atomic { if :: my > acked -> acked = my :: else fi; if :: my > lacked -> lacked = my :: else fi; CHK };
out: skip }


/* the channel: messages arrive late; it may be lost, noticed late, subscribed again */
active proctype Channel() {
  do
  :: atomic { pend > 0 -> pend--; gen++ }
#ifdef OWN
  :: atomic { sub && trusted && !cut && outages > 0 -> cut = true } /* commands fail first; the channel may go on for a while */
  :: atomic { cut && sub -> cut = false }
#endif
  :: atomic { outages > 0 && sub && trusted -> outages--; sub = false; pend = 0; gap = true };
#ifdef MUT_SILENT
     atomic { sub = true; gap = false }                        /* the client library reconnects, nobody notices */
#else
#ifdef MUT_NOBYPASS
     gap = false;
#else
     atomic { trusted = false; gap = false };                   /* noticed: bypass */
#endif
#ifdef BUMPATLOSS
     gen++;
#endif
#if defined(MUT_NOCLEAR)
#ifdef OWN
     cut = true; cut = false;
#endif
     sub = true; trusted = true
#elif defined(MUT_CLEARFIRST)
     gen++; sub = true; trusted = true                          /* cleared before Redis has the subscription */
#elif defined(MUT_TRUSTFIRST)
     sub = true; trusted = true; gen++
#else
#ifdef OWN
     cut = true; cut = false;
#endif
     sub = true;                                                /* Redis has it */
     gen++;                                                     /* confirmed: clear */
     trusted = true
#endif
#endif
  od }
active proctype Expire() { do :: atomic { kind != ABSENT -> do_del() } od }
init { atomic { byte i;
  for (i : 1 .. READERS) { run Reader() }
  i = 0; do :: i < REMOTE -> run Remote(); i++ :: else -> break od;
  i = 0; do :: i < LOCALW -> run Local(); i++ :: else -> break od; } }

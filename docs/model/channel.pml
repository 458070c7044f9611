/* Model F: the numbered invalidation channel. One key, one process P with a memory tier; publishers are remote
   (commit, DEL, announce, ack), in P (commit, DEL, bump, announce, ack), or announce another key (its stripe is not ours).
   announce is one script: prev := N; N := a fresh number; PUBLISH (prev, N, key). Messages may be lost without a sign,
   late, and (REORDER) in any order. Polls of N grant trust; a ghost carries what was acknowledged when the poll was SENT.
   Redis' entry and lease are those of memory.pml. All numbers below are small; 0 means "no counter". */
#define ABSENT 0
#define ENTRY  1
#define LEASE  2
#define THIS   1        /* a message for our key */
#define OWN    2        /* the same, published by P itself */
#define ELSE   0        /* for another key */
#ifndef READERS
#define READERS 1
#endif
#ifndef REMOTE
#define REMOTE 1
#endif
#ifndef LOCALW
#define LOCALW 0
#endif
#ifndef OTHER
#define OTHER 0         /* announcements of another key */
#endif
#ifndef POLLS
#define POLLS 2
#endif
#ifndef OUTAGES
#define OUTAGES 0       /* losses of the connection that P notices */
#endif
#ifndef FLUSH
#define FLUSH 0         /* FLUSHALL: entry, lease and counter */
#endif
#ifndef EVICT
#define EVICT 0         /* the counter alone */
#endif
#ifdef BACK             /* after its loss the counter goes on from 1: smaller numbers, but none twice (one loss at most) */
#define START 4
#endif
#ifndef START
#define START 1         /* the counter at the beginning, known to P; 0: there is none yet */
#endif
#define MSGS 3
#ifdef NOLOCK
#define LOCK 0
#else
#define LOCK 1
#endif
#ifdef BACK
#define AGAIN lastn = 0
#else
#define AGAIN skip
#endif
#define W(x) assert(WITNESS != x)       /* WITNESS=x: shows that this place is reached */
#ifndef WITNESS
#define WITNESS 0
#endif
byte kind = ENTRY, kver, ktok, nexttok = 1, db, acked, lacked;
byte N = START, lastn = START;
byte stripe, epoch;                                  /* an item's generation is the sum */
#ifdef BOOT                                             /* P has just started */
bool subOn = true, up = true, resynced = false, trusted = false, mp = false; byte sess, heard, base;
#else
bool subOn = true, up = true, resynced = true, trusted = true, mp = true; byte sess, heard = START, base = START;
#endif                                                  /* Redis has the subscription; P has it confirmed; polled in it */
byte pending, pendAs;
byte trustA;                                         /* ghost: acknowledged when the poll that granted trust was sent */
byte mver, mgen;                                     /* the memory tier: one slot */
bool lost, mu; byte inhand;                          /* ghost: a message lost since the last clear; P's lock; being handled */
bool noting; byte notedm; chan noted = [MSGS] of { byte, byte };
chan pub = [MSGS] of { byte, byte, byte };
byte outages = OUTAGES, flush = FLUSH, evict = EVICT;
#define CHK assert(kind != ENTRY || kver >= acked)
inline do_del() { kind = ABSENT; kver = 0; ktok = 0 }

#ifdef BETWEEN          /* numbers leave one out, and the first after a failover is that one */
bool rolled;
#endif
inline fresh() {
#if defined(REUSE)
  N = N + 1                                          /* plain numbers: restarts at 1 after a loss */
#elif defined(BETWEEN)
  if :: rolled -> rolled = false; N = N + 1 :: else -> lastn = lastn + 2; N = lastn fi
#else
  lastn++; N = lastn                                 /* max(prev+1, clock) */
#endif
}
#ifdef ROLL             /* failover: the counter is back at its value before the last announcement */
byte roll = ROLL, oldN;
#ifdef BETWEEN          /* which is of another key: nothing covers a lost delete of ours */
#define OLDN(w) if :: w == ELSE -> oldN = N :: else -> oldN = 0 fi
#define ROLLED rolled = true; oldN = 0
#else
#define OLDN(w) oldN = N
#define ROLLED skip
#endif
#else
#define OLDN(w) skip
#endif
inline announce(what) { d = N; OLDN(what); fresh();
  if
  :: subOn -> pub!d,N,what
#ifdef GATHER           /* gathered: numbered now, and delivered later, perhaps to a subscription that begins in between */
  :: !subOn -> pub!d,N,what
#endif
#ifdef NOLOSS
  :: !subOn -> lost = true
#else
  :: true -> lost = true                             /* not subscribed, or dropped without a sign */
#endif
  fi; d = 0 }

#ifdef MUT_GAPNOCLEAR
#define GAPCLEAR skip
#else
#define GAPCLEAR epoch++; lost = false
#endif
#if defined(NOLINK)
#define LINKED(p,m) true                               /* no gap is seen in messages */
#elif defined(PLAIN)
#define LINKED(p,m) (m == heard + 1)                   /* plain numbers, no prev */
#elif defined(NOZEROLINK)
#define LINKED(p,m) (p == heard && p != 0)
#else
#define LINKED(p,m) (p == heard)
#endif
#ifdef CODE                                             /* as the code does it: see README.md */
#define NOTELINKED
#define NOREPLAY
#endif
#ifdef NOTELINKED                                       /* a message that base skips is not noted either */
#define TONOTE(p,m) (LINKED(p,m) || !OLD(m))
#else
#define TONOTE(p,m) true
#endif
#ifdef NOBASE
#define OLD(m) false
#else
#define OLD(m) (m <= base)
#endif
inline link(p, m) {                                    /* under the lock */
#ifdef POLLONLY
  skip                                                 /* messages only bump; heard is what the last gap's poll said */
#else
  if
  :: LINKED(p,m) -> heard = m
  :: else -> if :: OLD(m) -> skip :: else -> GAPCLEAR; heard = m fi
  fi
#endif
  }
inline grant(a) { trusted = true; if :: a > trustA -> trustA = a :: else fi }

/* a Get that misses: generation, GET, lease, load, fill, and an asynchronous set of the memory tier (the last step, at
   any time later or never) */
proctype Reader() { byte v, g, k, kt, tok; bool ok;
#ifdef TWOREADS
  g = stripe; g = g + epoch;
#else
  g = stripe + epoch;
#endif
#ifdef MUT_GENLATE
  do :: atomic { kind == ENTRY -> v = kver }; break od; g = stripe + epoch; goto put;
#endif
again: skip;
  atomic { k = kind; v = kver; kt = ktok };
  if
  :: k == ENTRY -> skip
  :: k == LEASE -> goto again
  :: k == ABSENT ->
     atomic { if :: kind == ABSENT -> tok = nexttok; nexttok++; kind = LEASE; ktok = tok; kver = 0 :: else -> tok = 0 fi };
     if :: tok == 0 -> goto again :: else fi;
     v = db;
     atomic { if :: kind == LEASE && ktok == tok -> kind = ENTRY; kver = v; ok = true; CHK :: else -> ok = false fi };
     if :: ok -> skip :: else -> goto fin fi
  fi;
put: atomic { mp = true; mver = v; mgen = g };
fin: skip }

/* a Get that hits: trust first, then the item and the generations */
#ifndef ONLY
#define ONLY 7          /* which properties: 1 the bound, 2 own writes, 4 fast path */
#endif
#define QUIET (!lost && !inhand && len(pub) == 0 && up)
active proctype Hit() { byte need, v, s, g;
  do
#ifdef MUT_GENFIRST
  :: atomic { mp && mgen == stripe + epoch -> v = mver };
     atomic { if :: trusted -> assert(v >= trustA) :: else fi; v = 0 }
#else
  :: atomic { trusted && (trustA > 0 || lacked > 0 || (QUIET && acked > 0)) ->
       if :: (ONLY & 1) -> need = trustA :: else fi;
       if :: (ONLY & 2) && lacked > need -> need = lacked :: else fi;
       if :: (ONLY & 4) && QUIET && acked > need -> need = acked :: else fi };
#ifdef TWOREADS
     atomic { if :: mp -> v = mver; g = mgen :: else -> goto miss fi };
     s = stripe;
     atomic { if :: g == s + epoch -> assert(v >= need) :: else fi };
miss: atomic { need = 0; v = 0; g = 0; s = 0 }
#else
     atomic { if :: mp && mgen == stripe + epoch -> assert(mver >= need);
                 if :: need > 0 && need == trustA -> W(1) :: else fi;
                 if :: need > trustA && lacked == 0 -> W(7) :: else fi
              :: else fi; need = 0 }
#endif
#endif
  od }

proctype Remote() { byte my, d;
  atomic { db++; my = db };
#ifdef MUT_PUBFIRST
  atomic { announce(THIS) }; atomic { do_del() };
#else
  atomic { do_del() }; atomic { announce(THIS) };
#endif
  atomic { if :: my > acked -> acked = my :: else fi; CHK } }

proctype Local() { byte my, d;
  atomic { db++; my = db };
#if defined(MUT_BUMPFIRST)
  stripe++; atomic { do_del() }; atomic { announce(OWN) };
#elif defined(MUT_NOBUMP)
  atomic { do_del() }; atomic { announce(OWN) };
#elif defined(OWNLATE)
  atomic { do_del() }; atomic { announce(OWN) }; stripe++;   /* sent in one go, bump before the acknowledgement */
#elif defined(OWNHEARD)
  atomic { do_del() }; atomic { announce(THIS) };        /* no bump of its own, its message does it */
#else
  atomic { do_del() }; stripe++; atomic { announce(OWN) };
#endif
  atomic { if :: my > acked -> acked = my :: else fi; if :: my > lacked -> lacked = my :: else fi; CHK } }

proctype Other() { byte d; atomic { announce(ELSE) } }

/* messages: bump, then note and link under the lock */
#ifdef MUT_LATER                                        /* any later number shows that what was pending has come */
#define ARRIVED(p,m) (m >= pending)
#else                                                   /* or memory is cleared now */
#define ARRIVED(p,m) (m == pending || (m > pending && !LINKED(p,m)))
#endif
active proctype Handler() { byte p, m, w; bool come;
  do
  :: atomic { up && len(pub) > 0 -> pub?p,m,w; inhand = 1;
#if !defined(MUT_LINKFIRST) && !defined(MUT_NOMSGBUMP)
       if :: w == THIS -> stripe++ :: else fi
#endif
     };
     atomic { !mu ->
#if defined(CODE)
       if :: noting && TONOTE(p,m) -> notedm = notedm | (1 << m);
             if :: LINKED(p,m) -> skip :: else -> notedm = notedm | (1 << p) fi    /* p: memory is cleared now */
          :: else fi;
       come = pending != 0 && TONOTE(p,m) && ARRIVED(p,m);
#else
#ifndef RANGE
       if :: noting && TONOTE(p,m) -> noted!p,m; notedm = notedm | (1 << m) :: else fi;
#endif
       come = pending != 0 && pending == m;
#endif
       link(p, m);
       if :: come -> come = false; mu = LOCK
          :: else -> goto fin fi };
     atomic { W(2); grant(pendAs); pending = 0; pendAs = 0; mu = false };
fin: atomic {
#ifdef MUT_LINKFIRST
       if :: w == THIS -> stripe++ :: else fi;
#endif
       p = 0; m = 0; w = 0; inhand = 0 }
  od }
#ifdef REORDER
active proctype Shuffle() { byte p, m, w; do :: atomic { len(pub) > 1 -> pub?p,m,w; pub!p,m,w; p = 0; m = 0; w = 0 } od }
#endif

inline endsession() { d = 0;
#if !defined(OLDMSG) && !defined(GATHER)
  do :: len(pub) > 0 -> pub?_,_,_; lost = true :: else -> break od;
#endif
  up = false; subOn = false; resynced = false; pending = 0; pendAs = 0; sess++ }

/* the connection: P notices its loss; a new one is subscribed, then confirmed */
active proctype Session() { byte d;
  do
  :: atomic { up && outages > 0 && !mu -> outages--;
#ifndef KEEPTRUST
       trusted = false;
#endif
       endsession() }
  :: atomic { !up && !subOn -> subOn = true }
  :: atomic { !up && subOn && !mu ->
#ifdef MUT_CLEARFIRST
       epoch++;
#endif
       up = true }
  od }

#ifdef MUT_NOSESS
#define MAYPOLL !mu
#else
#define MAYPOLL (!mu && up)
#endif
#if defined(NONOTED)
#define NOTED(n) false
#elif defined(RANGE)                                    /* from what was heard at the sending to what is heard now */
#define NOTED(n) (has <= n && n <= heard)
#else
#define NOTED(n) (notedm & (1 << n))
#endif
#ifdef ZEROGAP
#define ZOK(n) (n != 0)                                /* "no counter" is never a known number */
#else
#define ZOK(n) true
#endif
/* polls, one at a time; a poll may fail */
active proctype Poller() { byte i, n, has, as, ps, x, y, d; bool replace;
  do
  :: i == POLLS -> break
  :: i < POLLS -> i++;
     atomic { MAYPOLL -> ps = sess; has = heard; noting = true; as = acked };
     atomic {
#ifdef CREATE
       if :: N == 0 -> fresh() :: else fi;
#endif
       n = N };
     if
     :: atomic { !mu -> noting = false;
#ifdef MUT_ATREPLY
          as = acked;
#endif
#ifndef MUT_NOSESS
          if :: ps != sess -> W(8); goto over :: else fi;
#endif
          mu = LOCK;
#ifdef MUT_ALWAYS
          goto yes;
#endif
#ifdef NORESYNC
          resynced = true;                              /* the first poll of a session is like any other */
#endif
#ifdef SOFTRESYNC                                       /* known: no clear; else a gap, without waiting */
          if :: !resynced -> resynced = true;
                if :: n == has || NOTED(n) -> goto yes :: else -> goto gap fi
             :: else fi;
#endif
          if
          :: !resynced -> resynced = true;
#ifdef MUT_GRANTFIRST
             goto grantfirst;
#endif
#if !defined(MUT_NOCLEAR) && !defined(MUT_CLEARFIRST)
             epoch++; lost = false;
#endif
#if defined(RANGE) || defined(CODE)
             if :: n == has || NOTED(n) -> skip :: else -> heard = n fi; base = n
#else
             heard = n; base = n;
#endif
#if !defined(NOREPLAY) && !defined(RANGE)
             do :: len(noted) > 0 -> noted?x,y; if :: y > n -> W(4); link(x, y) :: else fi
                :: else -> break od
#endif
#ifdef CODE
          :: resynced && pending != 0 && (n == has || NOTED(n)) -> pending = 0; pendAs = 0; goto yes
          :: resynced && pending != 0 && n != has && !NOTED(n) -> W(3); replace = true; pending = 0; pendAs = 0; goto gap
#else
          :: resynced && pending != 0 -> W(3); replace = true; pending = 0; pendAs = 0; goto gap
#endif
          :: resynced && pending == 0 ->
             if
             :: n == has && ZOK(n) -> goto yes
             :: n != has && NOTED(n) -> W(6); goto yes
             :: else ->
                if
#ifdef GAPATONCE
                :: false -> skip
#else
                :: n > heard -> pending = n; pendAs = as; mu = false; goto over
#endif
#if defined(LESSPEND)
                :: n <= heard -> pending = n; pendAs = as; mu = false; goto over
#elif defined(MUT_LESSGRANT)
                :: n <= heard -> goto yes
#endif
                :: else -> W(5); goto gap
                fi
             fi
          fi; goto yes;
gap:
#ifdef MUT_GRANTFIRST
          goto grantfirst;
#endif
          GAPCLEAR; heard = n; base = n;
yes:      skip };
        atomic { grant(as); mu = false };
        goto done;
#ifdef MUT_GRANTFIRST
grantfirst: skip;
        grant(as);
        atomic { epoch++; heard = n; base = n; mu = false };
        goto done;
#endif
done:   if :: replace -> atomic { !mu -> endsession() } :: else fi
     :: atomic { true -> noting = false }                /* no reply */
     fi;
over: atomic { do :: len(noted) > 0 -> noted?_,_ :: else -> break od; notedm = 0;
               n = 0; has = 0; as = 0; ps = 0; x = 0; y = 0; replace = false }
  od }

active proctype Loss() {
#ifdef ROLLCUT
  byte d;
#endif
  do
  :: atomic { flush > 0 -> flush--; do_del(); N = 0; AGAIN }
  :: atomic { evict > 0 -> evict--; N = 0; AGAIN }
#ifdef ROLL
  :: atomic { roll > 0 && oldN > 0 && !mu -> roll--; N = oldN; ROLLED;
#ifdef ROLLCUT                                           /* it cuts the connection, and P notices before it polls again */
       trusted = false; endsession()
#endif
     }
#endif
  :: atomic { kind != ABSENT -> do_del() }               /* expiry */
  od }
init { atomic { byte i;
  i = 0; do :: i < READERS -> run Reader(); i++ :: else -> break od;
  i = 0; do :: i < REMOTE -> run Remote(); i++ :: else -> break od;
  i = 0; do :: i < LOCALW -> run Local(); i++ :: else -> break od;
  i = 0; do :: i < OTHER -> run Other(); i++ :: else -> break od } }

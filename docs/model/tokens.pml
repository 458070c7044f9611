/* A read with a token (After): one range and one key. Writers announce writes of the key, and others announce other
   keys; Redis numbers the announcements, gathers and delivers them. Process P has a memory tier. The client of a writer
   carries the number of the last announcement to P, which serves the read from memory only if it HAS that number. Other
   reads ask Redis, and are not modelled: channel.pml and lives.pml show that they see each acknowledged write. */
#define THIS 1          /* an announcement of our key */
#define ELSE 0          /* of another key */
#ifndef WRITES
#define WRITES 1        /* writers of our key */
#endif
#ifndef OTHER
#define OTHER 1         /* announcements of other keys */
#endif
#ifndef POLLS
#define POLLS 2
#endif
#ifndef OUTAGES
#define OUTAGES 0       /* losses of P's connection */
#endif
#ifndef ROLL
#define ROLL 0          /* failovers that undo the last announcement of another key; the next number is smaller */
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define W(x) assert(WITNESS != x)       /* WITNESS=x: shows that this place is reached */
#define MSGS 5
#define START 2

/* Redis. Numbers leave one out, which is issued after a failover: numbers are clock times, none is issued twice. */
byte N = START, lastn = START, oldN;
bool rolled;
byte db, rv;                                        /* the row's version; that of a read from Redis */
chan pending = [MSGS] of { byte, byte, byte };      /* gathered: previous number, number, what */
chan pub = [MSGS] of { byte, byte, byte };          /* delivered, on the way to P */
byte roll = ROLL, outages = OUTAGES;

/* P: track.go, without the time of trust */
bool up = true, synced = true, gap; byte heard = START, base = START, missing, sess;
short recent = 1 << START, during;                  /* sets of numbers */
byte stripe, epoch;                                 /* of the memory tier; an item's generation is the sum */
bool mp; byte mver, mgen;                           /* its item */

inline announce(what) {
  d = N;
  if :: what == ELSE -> oldN = N :: else -> oldN = 0 fi;
  if :: rolled -> rolled = false; N = N + 1 :: else -> lastn = lastn + 2; N = lastn fi;
  pending!d,N,what; d = 0 }

/* one message with all that was gathered: it arrives part by part, or is lost as a whole */
inline deliver() {
  if :: up -> do :: len(pending) > 0 -> pending?d,n,w; pub!d,n,w :: else -> break od
     :: do :: len(pending) > 0 -> pending?_,_,_ :: else -> break od
  fi; d = 0; n = 0; w = 0 }
active proctype Redis() { byte d, n, w;
  do
  :: atomic { len(pending) > 0 -> deliver() }
  :: atomic { roll > 0 && oldN > 0 -> roll--; deliver(); N = oldN; oldN = 0; rolled = true }
  od }

#if defined(MUT_ORDER)                              /* any number up to the last one */
#define HAS(n) (synced && n <= heard)
#elif defined(MUT_UNSYNCED)                         /* in a session that no poll has confirmed */
#define HAS(n) (up && (recent & (1 << n)))
#elif defined(MUT_LASTPOLL)                         /* a poll has reported it, perhaps before it arrives */
#define HAS(n) (synced && ((recent & (1 << n)) || missing == n))
#else
#define HAS(n) (synced && (recent & (1 << n)))
#endif
proctype Writer() { byte my, n, d; bool has;
  atomic { db++; my = db };
  rv = db;                                          /* DEL: the next read loads */
  atomic { announce(THIS); n = N };
  if                                                /* another invalidation: the token has the later number only */
  :: atomic { announce(ELSE); n = N }
  :: skip
  fi;
  do                                                /* acknowledged: reads with the token, at any time from now on */
  :: has = HAS(n);
     if :: has -> atomic { if :: mp && mgen == stripe + epoch -> W(1); assert(mver >= my) :: else fi }
        :: else -> W(2)
     fi; has = false
  :: break
  od }

proctype Other() { byte d; atomic { announce(ELSE) } }

/* reads of others that fill memory */
active proctype Fill() { byte v, g;
  do :: g = stripe + epoch; v = rv; atomic { mp = true; mver = v; mgen = g; v = 0; g = 0 } od }

inline cover(m) { during = during | (1 << m); recent = recent | (1 << m) }
#ifdef MUT_GAPNOCLEAR
#define CLEAR skip
#else
#define CLEAR epoch++
#endif
active proctype Handler() { byte p, m, w;
  do
  :: atomic { up && len(pub) > 0 -> pub?p,m,w;
#ifndef MUT_LATE
       if :: w == THIS -> stripe++ :: else fi
#endif
     };
     atomic {
       if
       :: p == heard -> heard = m; cover(m); if :: m == missing -> missing = 0 :: else fi
       :: p != heard && m <= base -> W(3)
       :: else -> cover(p); if :: synced -> W(4); CLEAR :: else -> gap = true fi;
          heard = m; cover(m); if :: m >= missing -> missing = 0 :: else fi
       fi;
       p = 0; m = 0 };
#ifdef MUT_LATE                                     /* counts as received before the key is outdated */
     if :: w == THIS -> stripe++ :: else fi;
#endif
     w = 0
  od }

active proctype Poller() { byte i, has, ps, last; bool ok;
  do
  :: i == POLLS -> break
  :: i < POLLS -> i++;
     atomic { up -> has = heard; ps = sess; during = 0 };
     last = N;
     atomic { if
       :: !up || ps != sess -> skip
       :: else -> ok = (last == has || (during & (1 << last)));
          if
          :: synced && !ok && last > heard && missing == 0 -> missing = last; goto over
          :: synced && !ok && last > heard && missing != 0 -> goto over     /* too early to decide */
          :: synced && !ok && !(last > heard && missing == 0) -> W(5); CLEAR
          :: synced && ok -> skip
#ifdef MUT_NORESYNC
          :: !synced -> skip
#else
          :: !synced -> W(6); epoch++
#endif
          fi;
          if :: !ok -> heard = last :: else fi;
          if :: !ok || !synced -> base = last :: else fi;
          synced = true; gap = false; missing = 0; recent = recent | (1 << last)
       fi;
over:  has = 0; ps = 0; last = 0; ok = false }
  od }

active proctype Session() {
  do
  :: atomic { up && outages > 0 -> outages--; up = false; synced = false; missing = 0; sess++;
       do :: len(pub) > 0 -> pub?_,_,_ :: else -> break od }
  :: atomic { !up -> up = true }
  od }

init { atomic { byte i;
  i = 0; do :: i < WRITES -> run Writer(); i++ :: else -> break od;
  i = 0; do :: i < OTHER -> run Other(); i++ :: else -> break od } }

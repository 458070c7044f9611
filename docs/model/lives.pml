/* One key with two lives, and its hold. The key holds nothing, a lease, an entry (fresh or stale, claimed or not) or the marker of
   a load that has failed (UNSTORABLE: whose value cannot be stored; then each reader loads for itself). Each command of Redis is one atomic step, as in internal/lease/scripts.go. Readers Get: they serve what is there, take a lease
   if there is nothing, and claim what they have found to be stale, by the stamp that they have read. A refresher claims whatever there is.
   Writers commit, set the hold (HOLDS), DEL. Expirers commit and Expire. Whatever can end by itself does so at any time;
   to wait is to look later.
   REPLICA: loads under a lease or a claim see any version from rep on. See README.md for what is checked. */
#define ABSENT 0
#define LEASE  1
#define ENTRY  2
#define MARK   3
#define NOBODY 0
#ifndef READERS
#define READERS 2
#endif
#ifndef NGET
#define NGET 1          /* Gets of each reader */
#endif
#ifndef WRITERS
#define WRITERS 1
#endif
#ifndef REFRESHERS
#define REFRESHERS 1
#endif
#ifndef EXPIRERS
#define EXPIRERS 0
#endif
#ifndef FAILS
#define FAILS 0         /* loads that may fail */
#endif
#ifndef LOSSES
#define LOSSES 0        /* replies that may be lost: the command is carried out, or delayed, or never comes */
#endif
#ifndef KILLS
#define KILLS 0         /* ONELOAD: holders that may be killed */
#endif
#ifndef WITNESS
#define WITNESS 0
#endif
#define W(x) assert(WITNESS != x)                     /* WITNESS=x: shows that this place is reached */

byte kind = ENTRY, kver, ktok = 1;                    /* ktok: token of the lease or claim, or the entry's stamp */
byte T[3], S[3], O[3];                                /* of each process: its token; the stamp or token that it has read; a token whose reply was lost */
bool kfresh = true, kclaim, klive;                    /* in its soft life; flag of a claim; that has not ended */
bool hold; byte holdver;                              /* what the replica must show before the hold can end */
byte db, rep;                                         /* newest version of the database; what every replica has at least */
byte acked, eacked, refreshed;                        /* newest version whose Invalidate, Expire, Refresh has returned */
byte fails = FAILS;
#ifdef LIN
byte seen;                                            /* newest version that a finished read has returned */
#define SEEN seen
#else
#define SEEN 0
#endif
#ifdef ONELOAD
byte running, kills = KILLS;                          /* token of the load that nobody has voided, and whose process lives */
#define BEGINS(t) assert(running == 0); running = t   /* at most one such load */
#define ENDS(t) if :: running == t -> running = 0 :: else fi
#define VOIDS running = 0
#define ORPHAN (running != ktok)                      /* who lives renews */
#else
#define BEGINS(t) skip
#define ENDS(t) skip
#define VOIDS skip
#define ORPHAN true
#endif

#if !defined(REPLICA) || defined(REFRESHACK)
#define REFRESHES                                     /* Refresh sees what was committed before it was called */
#endif
/* promise 1; nothing from before an Expire is fresh; nothing from before a Refresh is there */
#define CHK assert(kind != ENTRY || (kver >= acked && (!kfresh || kver >= eacked) && kver >= refreshed))

inline gone() { kind = ABSENT; kver = 0; ktok = 0; kfresh = false; kclaim = false; klive = false }
inline do_del() { gone(); VOIDS }

#ifdef MUT_TAKEHELD
#define TAKEHELD false
#else
#define TAKEHELD hold
#endif
#ifdef MUT_CLAIMHELD
#define CLAIMHELD false
#else
#define CLAIMHELD hold
#endif
#ifdef MUT_CLAIMONCE
#define TAKEN false
#else
#define TAKEN (kclaim && klive)
#endif
/* the smallest token that stands nowhere: those that are forgotten may come again, so any number of loads needs few */
#define USED(t) (ktok == t || T[0] == t || T[1] == t || T[2] == t || S[0] == t || S[1] == t || S[2] == t || O[0] == t || O[1] == t || O[2] == t || DELAYED(t))
byte c;
#ifdef MUT_SAMETOK
#define TOKEN(t) t = 100                              /* one token for all loads */
#else
#define TOKEN(t) t = 0; c = 1; do :: USED(c) -> c++ :: else -> break od; t = c; c = 0
#endif

inline do_take(t) { if :: kind == ABSENT && !TAKEHELD -> kind = LEASE; ktok = t; BEGINS(t) :: else fi }

/* what comes of a claim */
#define MINE  1
#define BUSY  2
#define HELD  3
#define OTHER 4
inline do_claim(t, any, s, got) {                     /* any: whatever there is, else the entry whose stamp is s */
  if
  :: CLAIMHELD -> got = HELD
  :: !CLAIMHELD && kind == LEASE -> got = BUSY
  :: !CLAIMHELD && (kind == ABSENT || kind == MARK) ->
     if :: any -> gone(); kind = LEASE; ktok = t; got = MINE; BEGINS(t) :: else -> got = OTHER fi
  :: !CLAIMHELD && kind == ENTRY ->
     if
     :: TAKEN && (!any || ktok != NOBODY) -> got = BUSY
#ifdef MUT_CLAIMSTAMP
     :: else ->
#else
     :: !(TAKEN && (!any || ktok != NOBODY)) && !any && ktok != s -> got = OTHER
     :: !(TAKEN && (!any || ktok != NOBODY)) && (any || ktok == s) ->
#endif
#ifdef ONERELOAD
        assert(any || !kfresh);                       /* what was found to be stale has not been loaded since */
#endif
        ktok = t; kclaim = true; klive = true; got = MINE; BEGINS(t)
     fi
  fi }

#if defined(MUT_FILLCOMPARE)
#define THEIRS(t) false
#elif defined(MUT_FILLABSENT)
#define THEIRS(t) (kind != ABSENT && ktok != t)
#elif defined(MUT_FILLCLAIM)
#define THEIRS(t) (kind == ABSENT || kind == MARK || (kind == LEASE && ktok != t))
#else
#define THEIRS(t) (kind == ABSENT || kind == MARK || ktok != t)
#endif
inline do_fill(t, x, ok) {
  if
  :: THEIRS(t) -> ok = false
  :: else ->
     ok = true;
     if
     :: kind == ENTRY && !kclaim && ktok == t -> assert(kver == x)          /* a fill that is repeated; it must not say so of another */
     :: else -> kind = ENTRY; kver = x; ktok = t; kclaim = false; klive = false; kfresh = true; ENDS(t); CHK
     fi
  fi }

/* a load that has ended without a value; bad: it has failed. A claimed entry whose hard life is over goes as a lease does. */
inline do_end(t, bad) {
  if
  :: (kind == LEASE || (kind == ENTRY && kclaim)) && ktok == t ->
     ENDS(t);
     if
     :: kind == LEASE || true -> gone(); if :: bad -> kind = MARK :: else fi
     :: kind == ENTRY && bad ->
#if defined(MUT_THROTTLE_OWN)
        klive = true                                  /* its own token stays */
#else
        ktok = NOBODY; klive = true
#endif
     :: kind == ENTRY && !bad -> kclaim = false; klive = false
     :: kind == ENTRY && !bad -> klive = false             /* the reply to the claim was lost: the claim stays, and has ended */
     fi
  :: else
  fi }

inline do_expire(t) {
  if
  :: kind == ENTRY ->
#if defined(MUT_EXPIRE_CLAIM)
     kfresh = false                                   /* flag and stamp stay */
#elif defined(MUT_EXPIRE_STAMP)
     kfresh = false; kclaim = false; klive = false; VOIDS     /* the stamp stays */
#else
     kfresh = false; kclaim = false; klive = false; ktok = t; VOIDS
#endif
#ifdef MUT_EXPIRE_LEASE
  :: kind == LEASE -> skip
#endif
  :: else -> do_del()
  fi }

#define C_TAKE 1
#define C_CLAIM 2
#define C_FILL 3
#define C_END 4
#define C_EXPIRE 5
#define C_DEL 6
#if LOSSES > 0
byte losses = LOSSES;
byte nc[2], nt[2], nx[2], ny[2];                      /* the delayed ones: command, token, version or stamp, any */
#define DELAYED(t) (nt[0] == t || nt[1] == t || nx[0] == t || nx[1] == t)       /* a version among them wastes a number, no more */
#define LOST(c) :: losses > 0 -> losses--; lost = true; c
#define LATE(c,t,x,y) :: losses > 0 -> losses--; lost = true; if :: nc[0] == 0 -> nc[0] = c; nt[0] = t; nx[0] = x; ny[0] = y :: else -> nc[1] = c; nt[1] = t; nx[1] = x; ny[1] = y fi
#else
#define DELAYED(t) false
#define LOST(c)
#define LATE(c,t,x,y)
#endif

#ifdef REPLICA
inline read_db(v) { v = rep; do :: v < db -> v++ :: break od }
#else
inline read_db(v) { v = db }
#endif
inline read_held(v) {                                 /* while the key is on hold, PreferPrimary is true */
#if defined(REPLICA) && !defined(PRIMARY)
  read_db(v)
#else
  v = db
#endif
}

/* A read returns x. What was acknowledged when it began is not older: promise 2. To return at once is the strictest. */
inline ret(x) {
#if defined(REPLICA) && !defined(PRIMARY)
  assert(alone || x >= lo);                           /* the load function reads from the replica all the same */
#else
  assert(x >= lo);
#endif
#ifdef REFRESHES
  assert(x >= rlo);
#endif
#ifdef LIN
  assert(x >= lin);
  if :: x > seen -> seen = x :: else fi
#endif
  }
inline asks() { lo = acked; rlo = refreshed; lin = SEEN }
inline forget() { lo = 0; rlo = 0; lin = 0; v = 0; got = 0; T[me] = 0; S[me] = 0; ok = false; lost = false; alone = false }

#ifdef ONELOAD
#define KILL :: kills > 0 -> kills--; ENDS(T[me]); goto dead
#else
#define KILL
#endif

/* Under a lease or a claim: load, then fill or end. Goes to next (it has failed), or leaves ok. */
inline load_and_fill() {
  atomic { if :: true -> read_db(v) KILL fi };
  if
  :: atomic { fails > 0 -> fails--;
       if
       :: true -> do_end(T[me], true)
       :: true -> do_end(T[me], false)
       LATE(C_END,T[me],1,0)
       LATE(C_END,T[me],0,0)
       fi };
#ifdef MUT_LATEFILL                                   /* given up at its time-out, the load returns late, and is stored in the place of nobody's claim */
     atomic { if :: kind == ENTRY && kclaim && ktok == NOBODY -> kver = v; kfresh = true; kclaim = false; klive = false; CHK :: else fi };
#endif
#ifdef UNSTORABLE
     ret(v);
#endif
     goto next
  :: true -> skip
  fi;
fill: atomic { lost = false; ok = false;
       if
       :: true -> do_fill(T[me], v, ok)
       LOST(do_fill(T[me], v, ok))
       LATE(C_FILL,T[me],v,0)
       fi;
       if :: lost -> goto fill :: else fi;
       if :: !ok -> W(1) :: else fi;
#ifdef MUT_RETURNREFUSED
       ok = true
#endif
     } }

/* The key holds an entry, which is served. What is stale is claimed afterwards. */
inline hit() {
  if
  :: kfresh || TAKEN -> ret(kver); goto next
  :: !kfresh && !TAKEN -> S[me] = ktok; ret(kver); lo = 0; rlo = 0; lin = 0; renewal = true; goto renew
#ifdef EARLY
  :: kfresh && !TAKEN -> S[me] = ktok; ret(kver); lo = 0; rlo = 0; lin = 0; renewal = true; goto renew
#endif
  fi }

proctype Reader(byte me) {
  byte n, lo, rlo, lin, v, got; bool ok, lost, alone, renewal;
  do
  :: n == NGET -> break
  :: n < NGET -> atomic { n++; asks() };
again: atomic {                                       /* GET */
       if
       :: kind == ENTRY -> hit()
       :: kind == LEASE && (O[me] == 0 || ktok != O[me]) -> goto again
       :: kind == LEASE && O[me] != 0 && ktok == O[me] -> W(10); T[me] = O[me]; O[me] = 0; goto load      /* granted, the reply was lost */
#ifdef UNSTORABLE
       :: kind == MARK -> W(12); goto own
#else
       :: kind == MARK -> goto next
#endif
       :: kind == ABSENT -> skip
       fi };
     atomic { TOKEN(T[me]);                           /* take */
       got = (TAKEHELD -> HELD : MINE);
       if
       :: kind == ENTRY -> T[me] = 0; got = 0; hit()
       :: kind == LEASE || kind == MARK -> T[me] = 0; got = 0; goto again
       :: kind == ABSENT -> skip
       fi;
       if
       :: true -> do_take(T[me])
       LOST(do_take(T[me]))
       LATE(C_TAKE,T[me],0,0)
       fi;
       if
       :: lost -> W(11); O[me] = T[me]; T[me] = 0; got = 0; lost = false; goto again
       :: !lost && got == HELD -> T[me] = 0
       :: !lost && got == MINE -> goto load
       fi };
     W(2);
own: atomic { alone = true; read_held(v); ret(v); goto next };
renew: atomic { TOKEN(T[me]); lost = false; got = 0;  /* in the background: the value has been returned */
       if
       :: true -> do_claim(T[me], false, S[me], got)
       LOST(do_claim(T[me], false, S[me], got))
       LATE(C_CLAIM,T[me],S[me],0)
       fi;
       if
       :: got == MINE -> W(3); got = 0; lost = false  /* if the reply was lost: asks again, and finds its own token */
       :: got != MINE && lost -> T[me] = 0; goto renew
       :: got != MINE && !lost -> T[me] = 0; goto next
       fi };
load: load_and_fill();
     atomic {
       if
       :: ok && !renewal -> ret(v)
       :: ok && renewal -> W(4)
       :: !ok && !renewal -> v = 0; T[me] = 0; goto again
       :: !ok && renewal -> v = 0; T[me] = 0; goto renew
       fi };
next: atomic { forget(); O[me] = 0; renewal = false }
  od;
dead: atomic { forget(); O[me] = 0; renewal = false; n = 0 }
}

proctype Refresher(byte me) {
  byte lo, rlo, lin, v, got, my; bool ok, lost, alone;
  atomic { asks(); my = db };
again: atomic { TOKEN(T[me]); lost = false; got = 0;
    if
    :: true -> do_claim(T[me], true, 0, got)
    LOST(do_claim(T[me], true, 0, got))
    LATE(C_CLAIM,T[me],0,1)
    fi;
    if
    :: got == MINE -> W(5); lost = false; got = 0; goto load
    :: got == HELD && !lost -> W(6); T[me] = 0
    :: else -> T[me] = 0; goto again                  /* waits for the other, or asks again */
    fi };
  atomic { alone = true; read_held(v); ret(v); goto next };
load: load_and_fill();
  atomic {
    if :: !ok -> v = 0; T[me] = 0; goto again :: else fi;
    ret(v);
#ifdef REFRESHES
    if :: my > refreshed -> refreshed = my :: else fi; CHK                /* it returns nil */
#endif
  };
next: skip;
dead: atomic { forget(); my = 0 }
}

inline do_hold() { hold = true; holdver = db }
inline invalidated() { if :: my > acked -> acked = my :: else fi; my = 0; CHK }

/* commit, Invalidate */
proctype Writer() {
  byte my; bool lost;
  atomic { db++; my = db };
send: skip;
#if defined(HOLDS) && !defined(MUT_HOLDLATE)
  atomic { do_hold() };
#endif
  atomic { lost = false;
    if
    :: true -> do_del()
    LOST(do_del())
    LATE(C_DEL,0,0,0)
    fi;
    if :: lost -> goto send :: else fi;
#ifndef MUT_HOLDLATE
    invalidated() };
#else
  };
  atomic { do_hold() };
  atomic { invalidated() };
#endif
}

/* commit, Expire */
proctype Expirer() {
  byte my, tok; bool lost;
  atomic { db++; my = db };
send: atomic { lost = false; TOKEN(tok);
    if
    :: true -> do_expire(tok)
    LOST(do_expire(tok))
    LATE(C_EXPIRE,tok,0,0)
    fi;
    tok = 0;
    if :: lost -> goto send :: else fi;
    if :: my > eacked -> eacked = my :: else fi; my = 0; CHK } }

#ifdef MUT_OUTLIVES
#define KEPT false
#else
#define KEPT (kclaim && klive && ktok != NOBODY)      /* the claim has made the key outlive it */
#endif
active proctype Time() {
  do
  :: atomic { kind == LEASE && ORPHAN -> gone() }
  :: atomic { kind == MARK -> gone() }
  :: atomic { kind == ENTRY && !KEPT -> gone() }
  :: atomic { kind == ENTRY && klive && (ktok == NOBODY || ORPHAN) -> klive = false }
  :: atomic { kind == ENTRY && kfresh -> kfresh = false }
  :: atomic { rep < db -> rep++ }
#ifdef EVICT
  :: atomic { hold -> hold = false; holdver = 0 }
#else
  :: atomic { hold && rep >= holdver -> hold = false; holdver = 0 }
#endif
  od }

#if LOSSES > 0
proctype Net(byte i) {
  byte got; bool ok;
  do
  :: atomic { nc[i] != 0 ->
       if
       :: nc[i] == C_TAKE -> do_take(nt[i])
       :: nc[i] == C_CLAIM -> do_claim(nt[i], ny[i], nx[i], got)
       :: nc[i] == C_FILL -> do_fill(nt[i], nx[i], ok)
       :: nc[i] == C_END -> do_end(nt[i], nx[i])
       :: nc[i] == C_EXPIRE -> do_expire(nt[i])
       :: nc[i] == C_DEL -> do_del()
       :: true -> skip                                /* it never comes */
       fi; nc[i] = 0; nt[i] = 0; nx[i] = 0; ny[i] = 0; got = 0; ok = false }
  od }
#endif

init { atomic { byte i;
  if :: true -> skip :: gone() fi;                    /* an entry of version 0, or nothing */
  for (i : 1 .. READERS) { run Reader(i-1) }
  i = 0; do :: i < REFRESHERS -> run Refresher(READERS+i); i++ :: else -> break od;
  i = 0; do :: i < WRITERS -> run Writer(); i++ :: else -> break od;
  i = 0; do :: i < EXPIRERS -> run Expirer(); i++ :: else -> break od;
#if LOSSES > 0
  run Net(0); run Net(1);
#endif
  i = 0 } }

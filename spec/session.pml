/* SPDX-License-Identifier: Apache-2.0 */
/* Counting, giving up, fencing and restart between one sender and one receiver (contract C1, C3, C9).
 *
 * The sender posts WRITES writes with an immediate each on a path that delivers them in any order and
 * acknowledges each later. It may give up on one (deadline, cancel), the path may fail, and the
 * receiver may die and start again on the same address. The receiver gives its memory to somebody
 * else once the sender is fenced.
 *
 * Transitions and the code they stand for:
 *   POST      post.c account(), prov post()
 *   LAND      the provider places the payload, then reports PROV_IMM (P1); count_arrived()
 *   ACK       PROV_DONE with OK; post_done()
 *   GIVE_UP   post_abort(): cancel() takes the request back, or it was sent already (PROV_CQE_SENT)
 *   FAIL      path_lost(), path_close() on both sides: nothing lands after it
 *   SETTLE    op_settle(), after the last request is back
 *   RESTART   a new instance on the same address: hello.c refuses the old target
 *   REUSE     the receiver's memory is handed out again, after peer_down() there
 *
 * Assumed: a provider's promises P1 to P4 of prov.h; identities are never equal by chance.
 * Properties: each write settles once; one reported done was counted exactly once, an error 0 or 1
 * times; no byte lands in reused memory or in a new instance; a source is never read after its write
 * has settled. Broken variants: RESEND_BLIND (an unacknowledged write is sent again on a new path
 * though it may have been counted), REUSE_UNFENCED, SETTLE_EARLY (given up while the NIC still reads
 * the source), NO_INSTANCE (keys alone decide after a restart). */

#define WRITES 2

mtype = { IDLE, POSTED, LANDED, DONE, ERROR };
mtype state[WRITES] = IDLE;   /* what the sender knows */
bool on_nic[WRITES];          /* the NIC may still read its source */
bool on_wire[WRITES];         /* a copy may still land */
bool acked[WRITES];           /* an acknowledgement is under way */
byte counted[WRITES];
byte settled[WRITES];
byte resent[WRITES];

bool path_up = true;
bool sender_fenced = false;   /* the receiver has closed the path */
bool reused = false;
byte instance = 0;            /* of the receiver */
byte target = 0;              /* of the sender's session */

inline settle(i, as)
{
	state[i] = as;
	settled[i]++;
	assert(settled[i] == 1);
#ifndef SETTLE_EARLY
	assert(!on_nic[i])
#endif
}

inline give_up(i) /* GIVE_UP: not started yet, or handed over and no longer read */
{
#ifndef SETTLE_EARLY
	if
	:: on_wire[i] -> on_wire[i] = false /* taken back */
	:: skip                             /* sent: it may still land */
	fi;
	on_nic[i] = false;
#endif
	settle(i, ERROR)
}

inline flush(i) /* FAIL: the closed path gives its requests back */
{
	on_nic[i] = false;
#ifdef RESEND_BLIND
	if
	:: resent[i] == 0 && !sender_fenced -> resent[i] = 1; path_up = true; on_nic[i] = true; on_wire[i] = true
	:: else -> settle(i, ERROR)
	fi
#else
	settle(i, ERROR)
#endif
}

proctype sender()
{
	byte i = 0;

	do
	:: i == WRITES -> break
	:: else -> atomic { /* POST */
			if
			:: path_up -> state[i] = POSTED; on_nic[i] = true; on_wire[i] = true
			:: !path_up -> settle(i, ERROR)
			fi
		   };
		   i++
	od;
	do
	:: atomic { state[0] == POSTED && acked[0] -> acked[0] = false; on_nic[0] = false; settle(0, DONE) }
	:: atomic { state[1] == POSTED && acked[1] -> acked[1] = false; on_nic[1] = false; settle(1, DONE) }
	:: atomic { state[0] == POSTED -> give_up(0) }
	:: atomic { state[1] == POSTED -> give_up(1) }
	:: atomic { !path_up && state[0] == POSTED -> flush(0) }
	:: atomic { !path_up && state[1] == POSTED -> flush(1) }
	:: (state[0] == DONE || state[0] == ERROR) && (state[1] == DONE || state[1] == ERROR) -> break
	od
}

inline land(i)
{
	on_wire[i] = false;
	if
#ifdef NO_INSTANCE
	:: true ->
#else
	:: instance == target ->
#endif
		assert(!reused);
		assert(instance == target);
#ifdef SETTLE_EARLY
		assert(settled[i] == 0); /* else bytes written after the settle went out */
#endif
		counted[i]++;
		acked[i] = true
#ifndef NO_INSTANCE
	:: else
#endif
	fi
}

proctype wire()
{
end:	do
#ifdef REUSE_UNFENCED
	:: atomic { on_wire[0] -> land(0) }
	:: atomic { on_wire[1] -> land(1) }
#else
	:: atomic { on_wire[0] && !sender_fenced -> land(0) }
	:: atomic { on_wire[1] && !sender_fenced -> land(1) }
#endif
	:: atomic { path_up && !sender_fenced -> path_up = false } /* what is on the wire may still land */
	od
}

proctype receiver()
{
	if
	:: skip /* lives on */
	:: atomic { sender_fenced = true; path_up = false }; /* FAIL, then REUSE */
		reused = true
	:: atomic { instance = 1; path_up = false } /* RESTART: keys and addresses are the same again */
	fi
}

proctype judge()
{
	(state[0] == DONE || state[0] == ERROR) && (state[1] == DONE || state[1] == ERROR);
	atomic {
		assert(state[0] != DONE || counted[0] == 1);
		assert(state[1] != DONE || counted[1] == 1)
	};
end:	do
	:: atomic { counted[0] > 1 || counted[1] > 1 -> assert(false) }
	od
}

init { atomic { run wire(); run sender(); run receiver(); run judge() } }

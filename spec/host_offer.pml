/* SPDX-License-Identifier: Apache-2.0 */
/* Offers of src/prov/host: the receiver fetches from the sender's memory while the sender may take its
 * offer back at any moment. A ring of one entry, two writes after one another, so that a state word of
 * an earlier lap is there to be mistaken.
 *
 * Memory: both sides' changes of the state word are read-modify-writes with acquire and release, which
 * act on memory; what they order besides is the copy and the reuse of the source, which are steps here.
 * The receiver may stop between any two steps. Transitions: PUT host_slot_put with ROOM; WITHDRAW_1, _2
 * the two compare-and-swaps of host_slot_withdraw; BEGIN host_slot_begin; FETCH the system call, which
 * starts and ends; TAKE host_slot_take; ACK acknowledge(); DONE host_tx_report.
 *
 * Properties: a source is never read once it is free; a write reported done was counted, one reported
 * as taken back was not and never is; nothing waits for ever. Broken variants: NO_BEGIN (the receiver
 * does not say that it reads), TAKE_BLIND (counts without asking), REUSE_READING (the sender does not
 * wait for a reader), DONE_BY_ACK (what the reader passed over counts as done). */

#define COUNT 2
mtype = { NOTHING, OFFERED, WITHDRAWN, FETCHING, TAKEN };

mtype state = NOTHING;
byte state_pos = 0;
byte sequence = 0, acked = 0;
bool source[COUNT];  /* is the sender's to give */
bool counted[COUNT];
bool not_done[COUNT]; /* reported as taken back */

#define IS(pos, what) (state == what && state_pos == pos)

proctype sender()
{
	byte pos = 0;
	bool dropped, reading, asked;

	do
	:: pos == COUNT -> break
	:: else ->
		dropped = false; reading = false; asked = false;
		atomic { source[pos] = true; state = OFFERED; state_pos = pos } /* PUT */
		sequence = pos + 1;
		do
		:: acked > pos -> break
		:: acked <= pos && !asked -> /* cancel, once */
			asked = true;
			if
			:: atomic { IS(pos, OFFERED) -> state = WITHDRAWN } /* WITHDRAW_1 */
				dropped = true
			:: atomic { !IS(pos, OFFERED) -> skip };
				if
				:: atomic { IS(pos, FETCHING) -> state = WITHDRAWN } /* WITHDRAW_2 */
					dropped = true; reading = true
				:: atomic { !IS(pos, FETCHING) -> skip } /* too late */
				fi
			fi;
#ifdef REUSE_READING
			reading = false;
#endif
			if
			:: dropped && !reading -> /* at once */
				atomic { source[pos] = false; not_done[pos] = true; assert(!counted[pos]) }
			:: else
			fi
		od;
		atomic { /* DONE */
#ifdef DONE_BY_ACK
			if :: !not_done[pos] -> assert(counted[pos]) :: else fi;
#else
			if
			:: dropped -> not_done[pos] = true
			:: else -> assert(counted[pos])
			fi;
#endif
			assert(!not_done[pos] || !counted[pos]);
			source[pos] = false
		}
		pos++
	od
}

proctype receiver()
{
	byte pos = 0;

	do
	:: pos == COUNT -> break
	:: sequence == pos + 1 ->
#ifndef NO_BEGIN
		if
		:: atomic { IS(pos, OFFERED) -> state = FETCHING } /* BEGIN */
#else
		if
		:: atomic { IS(pos, OFFERED) -> skip }
#endif
			assert(source[pos]); /* FETCH starts */
			assert(source[pos]); /* and ends */
			if
#ifdef TAKE_BLIND
			:: atomic { true -> counted[pos] = true; state = TAKEN; assert(!not_done[pos]) }
#elif defined(NO_BEGIN)
			:: atomic { IS(pos, OFFERED) -> state = TAKEN; counted[pos] = true; assert(!not_done[pos]) }
			:: atomic { !IS(pos, OFFERED) -> skip }
#else
			:: atomic { IS(pos, FETCHING) -> state = TAKEN; counted[pos] = true; assert(!not_done[pos]) } /* TAKE */
			:: atomic { !IS(pos, FETCHING) -> skip }
#endif
			fi
		:: atomic { !IS(pos, OFFERED) -> skip } /* taken back */
		fi;
		acked = pos + 1; /* ACK */
		pos++
	od
}

init { atomic { run sender(); run receiver() } }

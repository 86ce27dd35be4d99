/* SPDX-License-Identifier: Apache-2.0 */
/* src/prov/host/path.c and dev.c: nobody sleeps through what the other side of a path has done. The
 * reading process acknowledges, twice, and rings for it later; the writing one waits for both.
 *
 * Memory: a plain store reaches memory at any time until the next read-modify-write of its process,
 * so the load of host_path_ring_later() may come before the acknowledgement is out. Transitions: ACK
 * acknowledge(); LATER host_path_ring_later(); RING the exchange [E] of host_path_ring(), and REST the
 * same from ring_rest(); ANNOUNCE the exchange [D]; RECHECK the look of host_op_arm() behind it; AWAKE.
 *
 * Properties: the writing process gets to the end (one that sleeps for ever is a dead end); a bell is
 * taken only when it was rung. Broken: NO_REST (what LATER missed is not made good before the next look
 * at the sockets), ANNOUNCE_PLAIN (a store instead of [D]), NO_RECHECK. */

#define COUNT 2

byte acked = 0;           /* the word in shared memory */
bool late_ack = false;    /* the reading process's store of it is under way */
byte late_acked;
bool sleeping = false;    /* the writing process's bell */
bool late_word = false;   /* its own plain store of it is under way */
bool late_sleeping;
byte bells = 0;           /* packets in its socket */

inline drain_ack() { if :: late_ack -> acked = late_acked; late_ack = false :: else fi }
inline drain_word() { if :: late_word -> sleeping = late_sleeping; late_word = false :: else fi }

proctype memory()
{
end:	do
	:: atomic { late_ack -> acked = late_acked; late_ack = false }
	:: atomic { late_word -> sleeping = late_sleeping; late_word = false }
	od
}

inline ring()
{
	atomic { /* [E] */
		drain_ack();
		if
		:: sleeping -> sleeping = false; bells++
		:: else
		fi;
		due = false
	}
}

proctype reader()
{
	byte done = 0;
	bool due = false;

	do
	:: done == COUNT -> break
	:: done < COUNT ->
		done++;
		atomic { drain_ack(); late_ack = true; late_acked = done; due = true } /* ACK */
		if /* LATER */
		:: sleeping -> ring() /* RING */
		:: !sleeping
		fi
	:: due -> ring() /* REST: between two entries too */
	od;
#ifndef NO_REST
	if :: due -> ring() :: else fi /* REST, before it sleeps at the latest */
#endif
}

proctype writer()
{
	byte seen = 0;

	do
	:: seen == COUNT -> break
	:: else ->
		atomic { seen = acked };
		if
		:: seen == COUNT -> break
		:: else
		fi;
#ifdef ANNOUNCE_PLAIN
		atomic { drain_word(); late_word = true; late_sleeping = true };
#else
		atomic { drain_word(); sleeping = true }; /* ANNOUNCE [D] */
#endif
#ifndef NO_RECHECK
		if
		:: acked != seen -> skip /* RECHECK: does not sleep */
		:: acked == seen ->
#else
		if
		:: true ->
#endif
			atomic { bells > 0 -> bells-- } /* asleep */
		fi;
		atomic { drain_word(); late_word = true; late_sleeping = false } /* AWAKE */
	od
}

init { atomic { run memory(); run reader(); run writer() } }

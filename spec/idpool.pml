/* SPDX-License-Identifier: Apache-2.0 */
/* src/queue/idpool.c: a ring of 2 slots with 2 indices; three threads get one, use it, put it back.
 *
 * Memory: the index stored by a put may reach memory later than anything but a release store behind
 * it ([D]); turns are atomics. Transitions: GET_CAS the compare-and-swap with [A] just before; GET_READ
 * the load of the index; GET_TURN [B]; PUT_DRAW the fetch-add; PUT_WAIT [C]; PUT_INDEX; PUT_TURN [D].
 *
 * Properties: no index is out twice; a get that fails does so only while none is free or a put is half
 * done; nobody waits for ever. Broken: D_RELAXED (the turn may overtake the index), B_EARLY (the turn
 * is given back before the index is read). */

#define SLOTS 2
#define THREADS 3
#define ROUNDS 2

byte turn[SLOTS];        /* modulo 16: positions stay far below */
byte index[SLOTS];
byte get_pos = 0, put_pos = SLOTS;
bool held[SLOTS];

bool late[THREADS];      /* an index store of this thread that has not reached memory */
byte late_slot[THREADS], late_index[THREADS];

inline drain(t) { index[late_slot[t]] = late_index[t]; late[t] = false }

proctype memory(byte t)
{
end:	do
	:: atomic { late[t] -> drain(t) }
	od
}

proctype worker(byte t)
{
	byte pos, got, round = 0;

	do
	:: round == ROUNDS -> break
	:: else ->
		/* get; one that finds none tries again when a turn has changed */
		atomic { /* [A], GET_CAS */
			turn[get_pos % SLOTS] == get_pos + 1 -> pos = get_pos; get_pos++
		}
#ifdef B_EARLY
		atomic { turn[pos % SLOTS] = pos + SLOTS }
#endif
		got = index[pos % SLOTS]; /* GET_READ */
		atomic { assert(!held[got]); held[got] = true }
#ifndef B_EARLY
		turn[pos % SLOTS] = pos + SLOTS; /* [B] */
#endif
		atomic { held[got] = false; pos = put_pos; put_pos++ } /* PUT_DRAW */
		turn[pos % SLOTS] == pos; /* PUT_WAIT [C] */
		atomic { !late[t]; late[t] = true; late_slot[t] = pos % SLOTS; late_index[t] = got }
		atomic { /* PUT_TURN [D] */
#ifndef D_RELAXED
			if :: late[t] -> drain(t) :: else fi;
#endif
			turn[pos % SLOTS] = pos + 1
		}
		round++
	od
}

init { atomic {
	turn[0] = 1; turn[1] = 2; index[0] = 0; index[1] = 1;
	run memory(0); run memory(1); run memory(2);
	run worker(0); run worker(1); run worker(2)
} }

/* SPDX-License-Identifier: Apache-2.0 */
/* src/queue/idpool.c: a stack of 3 indices; three threads get one, or two, use them, put them back.
 *
 * Memory: the link stored by a put may reach memory later than anything but a release behind it
 * ([B]); `top` is an atomic word of two halves. Transitions: GET_LOAD [A]; GET_LINK the load of the
 * link; GET_SWAP; PUT_LOAD; PUT_LINK; PUT_SWAP [B].
 *
 * Properties: no index is out twice; none is lost: at the end each is free once; a get fails only
 * while all are out or on their way back. Broken: B_RELAXED (the new top may overtake its link),
 * NO_COUNT (a top that came back is taken for one that stayed). */

#define IDS 3
#define THREADS 3
#define NONE 0           /* indices are named by 1..IDS */

byte below[IDS + 1];
byte top = 1;
byte gets = 0;           /* modulo 256: runs stay far below */
bool held[IDS + 1];
byte ended = 0;
byte out = 0;            /* indices held, or between a put's beginning and its end */

bool late[THREADS];      /* a link store of this thread that has not reached memory */
byte late_index[THREADS], late_link[THREADS];

inline drain(t) { below[late_index[t]] = late_link[t]; late[t] = false }

proctype memory(byte t)
{
end:	do
	:: atomic { late[t] -> drain(t) }
	od
}

inline get(id)
{
	do
	:: atomic { top == NONE -> assert(out == IDS); id = NONE } -> break
	:: atomic { top != NONE -> seen = top; count = gets } /* GET_LOAD [A] */
		link = below[seen]; /* GET_LINK */
		if /* GET_SWAP */
#ifdef NO_COUNT
		:: atomic { top == seen -> top = link; gets++; out++;
#else
		:: atomic { top == seen && gets == count -> top = link; gets++; out++;
#endif
			id = seen; assert(!held[id]); held[id] = true } -> break
		:: else
		fi
	od
}

inline put(t, id)
{
	atomic { held[id] = false; seen = top } /* PUT_LOAD */
	do
	:: atomic { !late[t]; late[t] = true; late_index[t] = id; late_link[t] = seen } /* PUT_LINK */
		if /* PUT_SWAP [B] */
		:: atomic { top == seen ->
#ifndef B_RELAXED
			if :: late[t] -> drain(t) :: else fi;
#endif
			top = id; out--; id = NONE } -> break
		:: else -> seen = top
		fi
	od
}

proctype worker(byte t)
{
	byte seen, count, link, one, two;

	get(one);
	if :: t == 0 -> get(two) :: else fi; /* so that the one below the top goes too */
	if :: one != NONE -> put(t, one) :: else fi;
	if :: two != NONE -> put(t, two) :: else fi;
	if :: t == 1 -> get(one) :: else fi;
	if :: one != NONE -> put(t, one) :: else fi;
	atomic { !late[t]; ended++ }
}

proctype count_them()
{
	byte at, n;

	atomic {
		ended == THREADS;
		at = top;
		do
		:: at == NONE -> break
		:: else -> n++; assert(n <= IDS); at = below[at]
		od;
		assert(n == IDS)
	}
}

init { atomic {
	below[1] = 2; below[2] = 3; below[3] = NONE;
	run memory(0); run memory(1); run memory(2);
	run worker(0); run worker(1); run worker(2);
	run count_them()
} }

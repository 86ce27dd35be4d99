/* SPDX-License-Identifier: Apache-2.0 */
/* src/queue/mpsc.c: two producers, one consumer, stores that may reach memory late and out of order.
 *
 * Memory: each producer keeps three stores back (the node's value, its next = NULL, the link behind
 * its predecessor); any of them may reach memory at any time, in any order, unless a release comes
 * in between. A read-modify-write acts on memory. Loads read memory: reordered loads are not shown.
 *
 * Transitions: PUSH_INIT value and next = NULL; XCHG [A]; LINK [B] of mpsc_push; POP is mpsc_pop with
 * its loads [C], [D] as one step, since only producers race with it and each of its loads is checked
 * against memory at that moment; its own push of the stub is done in two steps like any other.
 *
 * Properties: every node comes out once, with its value, in the order of its producer; none is lost.
 * Broken variants: XCHG_RELAXED, ALL_RELAXED, POP_LAST_EARLY (the last node leaves with none behind). */

#define NODES 5 /* 0 is the stub; 1, 2 of producer 0; 3, 4 of producer 1 */
#define NONE 255

byte next[NODES] = NONE;
bool value[NODES];        /* has reached memory */
byte tail = 0;
byte head = 0;            /* the consumer's */
byte popped = 0;
byte last_of[2];          /* the node that came out last, of each producer */
bool out[NODES];
byte finished = 0;

/* Kept-back stores of producer p (2: the consumer, pushing the stub). */
bool late_value[3], late_null[3], late_link[3];
byte late_node[3], late_prev[3];

inline drain_value(p) { value[late_node[p]] = true; late_value[p] = false }
inline drain_null(p) { next[late_node[p]] = NONE; late_null[p] = false }
inline drain_link(p) { next[late_prev[p]] = late_node[p]; late_link[p] = false }

inline release(p)
{
	if :: late_value[p] -> drain_value(p) :: else fi;
	if :: late_null[p] -> drain_null(p) :: else fi;
	if :: late_link[p] -> drain_link(p) :: else fi
}

/* The store buffer of p: anything in it may reach memory now. */
proctype memory(byte p)
{
end:	do
	:: atomic { late_value[p] -> drain_value(p) }
	:: atomic { late_null[p] -> drain_null(p) }
	:: atomic { late_link[p] -> drain_link(p) }
	od
}

proctype producer(byte p)
{
	byte n = 1 + 2 * p;

	do
	:: n > 2 + 2 * p -> break
	:: else ->
		atomic { /* a node is the producer's again only when its stores are out */
			!late_value[p] && !late_null[p] && !late_link[p];
			late_node[p] = n; late_value[p] = true; late_null[p] = true
		}
		atomic { /* [A] */
#if !defined(XCHG_RELAXED) && !defined(ALL_RELAXED)
			release(p);
#endif
			late_prev[p] = tail; tail = n
		}
		atomic { /* [B] */
#if !defined(ALL_RELAXED)
			release(p);
			next[late_prev[p]] = n
#else
			late_link[p] = true
#endif
		}
		n++
	od;
	atomic { !late_value[p] && !late_null[p] && !late_link[p]; finished++ }
}

byte got;

inline take()
{
	head = next[head];
	if
	:: got == 0 -> skip
	:: else ->
		assert(value[got]);
		assert(!out[got]);
		out[got] = true;
		assert(got > last_of[(got - 1) / 2]);
		last_of[(got - 1) / 2] = got;
		popped++
	fi
}

proctype consumer()
{
	bool over = false;
	bool stub_pushed;

	do
	:: popped == NODES - 1 -> break
	:: else ->
		atomic { /* everything has been said: what is not found now is lost */
			over = (finished == 2)
		}
		atomic { /* skip the stub */
			if
			:: head == 0 && next[0] != NONE -> head = next[0]
			:: else
			fi
		}
		if
		:: atomic { head != 0 && next[head] != NONE -> got = head; take() }
		:: atomic { head == 0 || next[head] == NONE ->
			if
#ifdef POP_LAST_EARLY
			:: head != 0 -> got = head; next[got] = 0; next[0] = NONE; take()
#else
			:: head != 0 && tail == head -> /* [D]: push the stub behind the last */
				next[0] = NONE; late_prev[2] = tail; tail = 0; stub_pushed = true
#endif
			:: else -> stub_pushed = false
			fi
		   };
		   if
		   :: stub_pushed -> atomic { next[late_prev[2]] = 0; stub_pushed = false }
		   :: else -> assert(!over || popped == NODES - 1 || head == 0 && next[0] != NONE || head != 0 && (next[head] != NONE || tail == head))
		   fi
		fi
	od
}

init { atomic {
	last_of[0] = 0; last_of[1] = 0;
	run memory(0); run memory(1);
	run producer(0); run producer(1); run consumer()
} }

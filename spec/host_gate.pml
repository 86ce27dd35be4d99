/* SPDX-License-Identifier: Apache-2.0 */
/* src/prov/host/share.c and maps.h: a sender copies into memory that its owner has lent, and the owner
 * takes it back. Each looks at the other's word after it has written its own, so stores must not wait
 * while loads go ahead.
 *
 * Memory: each side's store may reach memory late, and a load of the other word may come before it,
 * unless the store is sequentially consistent, which drains. Transitions: ENTER and LEAVE of
 * host_maps_enter() and _leave() [H]; COPY in between, which starts and ends; GATE change_gate() [J]; QUIET
 * wait_quiet() [I], which gives up on a sender that stays inside: FENCE, after which the copy lands in
 * nobody's memory.
 *
 * Properties: once the owner has its memory back no copy lands in it; a copy whose sender was told that
 * it counts landed in the owner's memory. Broken variants: ENTER_RELEASE (the sender's store waits while
 * it looks at the gate), GATE_RELEASE (the owner's does), LEAVE_BLIND (the sender does not look again),
 * NO_WAIT (the owner does not look at the sender). */

#define COPIES 2

byte gate = 0, writing = 0;
bool late_gate = false, late_writing = false; /* kept back: the word's next value */
bool back = false;   /* the owner uses its memory for something else */
bool fenced = false; /* what the sender has mapped is nobody's */

inline drain_gate() { gate = 1; late_gate = false }
inline drain_writing() { writing = writing + 1; late_writing = false }

proctype memory()
{
end:	do
	:: atomic { late_gate -> drain_gate() }
	:: atomic { late_writing -> drain_writing() }
	od
}

proctype sender()
{
	byte n = 0;
	bool mine, lands;

	do
	:: n == COPIES -> break
	:: else ->
		atomic { !late_writing -> late_writing = true } /* ENTER [H] */
#ifndef ENTER_RELEASE
		atomic { if :: late_writing -> drain_writing() :: else fi };
#endif
		mine = (gate == 0);
		lands = false;
		if
		:: mine ->
			atomic { lands = !fenced; assert(!back || fenced) } /* COPY starts */
			atomic { lands = lands && !fenced; assert(!back || fenced) } /* and ends */
		:: else
		fi;
		atomic { !late_writing -> late_writing = true } /* LEAVE */
		atomic { if :: late_writing -> drain_writing() :: else fi };
#ifdef LEAVE_BLIND
		assert(!mine || lands);
#else
		if
		:: mine && gate == 0 -> assert(lands) /* it counts */
		:: else -> break /* void: ask anew */
		fi;
#endif
		n++
	od
}

proctype owner()
{
	byte seen;

	late_gate = true; /* GATE [J] */
#ifndef GATE_RELEASE
	atomic { if :: late_gate -> drain_gate() :: else fi };
#endif
#ifndef NO_WAIT
	seen = writing; /* QUIET [I] */
	if
	:: seen % 2 == 0
	:: seen % 2 == 1 ->
		if
		:: writing != seen
		:: fenced = true /* after a while: FENCE */
		fi
	fi;
#endif
	back = true
}

init { atomic { run memory(); run sender(); run owner() } }

/* SPDX-License-Identifier: Apache-2.0 */
/* src/plat/wake.c: two producers publish work, one consumer sleeps; no wake-up is lost.
 *
 * Memory: a producer's publication may reach memory late; an exchange on `sleeping` that is acq_rel
 * first lets it out. Transitions: PUBLISH; SIGNAL [A] in wake_signal; ANNOUNCE [B] in wake_announce;
 * LOOK; BLOCK (the descriptor's count); DRAIN with wake_cancel.
 *
 * Property: the consumer takes all work and never sleeps with work published and signalled (an
 * invalid end state). Broken: LOAD_FOR_EXCHANGE (a producer that only loads `sleeping` keeps its
 * publication back), NO_RECHECK (the consumer does not look after announcing). */

#define WORK 2

byte work = 0, taken = 0;
bool sleeping = false;
byte fd = 0;
bool late[2];

proctype memory(byte p)
{
end:	do
	:: atomic { late[p] -> late[p] = false; work++ }
	od
}

proctype producer(byte p)
{
	bool was;

	late[p] = true; /* PUBLISH */
	atomic { /* [A] */
#ifndef LOAD_FOR_EXCHANGE
		if :: late[p] -> late[p] = false; work++ :: else fi;
		was = sleeping; sleeping = false
#else
		was = sleeping
#endif
	}
	if :: was -> fd++ :: else fi
}

proctype consumer()
{
	do
	:: taken == WORK -> break
	:: atomic { work > 0 -> work--; taken++ }
	:: work == 0 && taken < WORK -> sleeping = true; /* looked, then [B] */
#ifndef NO_RECHECK
		if
		:: atomic { work > 0 -> sleeping = false }
		:: atomic { work == 0 -> skip };
			atomic { fd > 0 -> fd = 0; sleeping = false } /* BLOCK, DRAIN */
		fi
#else
		atomic { fd > 0 -> fd = 0; sleeping = false }
#endif
	od
}

init { atomic { run memory(0); run memory(1); run producer(0); run producer(1); run consumer() } }

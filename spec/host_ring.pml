/* SPDX-License-Identifier: Apache-2.0 */
/* src/prov/host/ring.c and path_tx.c, path_rx.c around it: one lane, a ring of 2 entries and of 2 runs
 * of bytes, one writing and one reading process, 5 entries, so that both rings come round twice.
 *
 * Memory: the writer's stores of an entry's words and of its bytes may reach memory at any time, in any
 * order, unless a release comes in between. The reader's own stores come in order; its loads are the
 * steps below, in this order. Transitions: ROOM host_tx_acks [F]; BYTES put_slot; WORDS and SEQUENCE [A]
 * of host_slot_put; LOOK [B] of host_slot_get with its check of old sequences; COPY place_one; ACK [G].
 *
 * Properties: every entry comes out once, in order, with its own words and bytes; the reader never
 * takes what lies there for broken. Broken variants: A_RELAXED, ACK_EARLY (before the bytes are read),
 * ROOM_BLIND (the writer does not look how far the reader is). */

#define RING 2
#define COUNT 5

byte sequence[RING], words[RING], bytes[RING]; /* position + 1 */
byte acked = 0;
bool late_words = false, late_bytes = false;
byte late_pos;

inline drain_words() { words[late_pos % RING] = late_pos + 1; late_words = false }
inline drain_bytes() { bytes[late_pos % RING] = late_pos + 1; late_bytes = false }

proctype memory()
{
end:	do
	:: atomic { late_words -> drain_words() }
	:: atomic { late_bytes -> drain_bytes() }
	od
}

proctype writer()
{
	byte pos = 0;

	do
	:: pos == COUNT -> break
	:: else ->
#ifndef ROOM_BLIND
		pos - acked < RING; /* ROOM [F] */
#endif
		atomic { !late_words && !late_bytes -> late_pos = pos; late_bytes = true } /* BYTES */
		atomic { late_words = true } /* WORDS */
		atomic { /* SEQUENCE [A] */
#ifndef A_RELAXED
			if :: late_words -> drain_words() :: else fi;
			if :: late_bytes -> drain_bytes() :: else fi;
#endif
			sequence[pos % RING] = pos + 1
		}
		pos++
	od
}

proctype reader()
{
	byte pos = 0, seen;

	do
	:: pos == COUNT -> break
	:: else ->
		atomic { /* LOOK [B] */
			seen = sequence[pos % RING];
			assert(seen == pos + 1 || seen + RING == pos + 1 || seen == 0)
		}
		if
		:: seen != pos + 1 -> sequence[pos % RING] != seen
		:: else ->
			assert(words[pos % RING] == pos + 1);
#ifdef ACK_EARLY
			acked = pos + 1;
#endif
			assert(bytes[pos % RING] == pos + 1); /* COPY */
#ifndef ACK_EARLY
			acked = pos + 1; /* ACK [G] */
#endif
			pos++
		fi
	od
}

init { atomic { run memory(); run writer(); run reader() } }

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_PAIR_H
#define TOOLS_LIB_PAIR_H

/* One NIC here and one over there: does a session come up, are a write's bytes readable when its
 * immediate is counted, how fast is it. The client asks for pair after pair; for each the target
 * opens an engine with that NIC alone and a buffer full of poison, and compares each write at the
 * moment at which its mirror word counts it. */

#include "lib/channel.h"
#include "lib/nics.h"

struct pair_result {
	bool reached;
	bool visible;
	char reason[400]; /* why not reached, or what was wrong; "": nothing */
	char way[256];    /* what the peer info says */
	uint32_t writes;  /* compared */
	double us_p50;    /* of one write of 8 bytes, post to done */
	double gb_s;
};

/* Client: say which provider; hear the target's NICs. */
void pair_greet(struct channel *channel, const char *provider, struct nic_list *out);
void pair_check(struct channel *channel, const char *provider, const char *nic,
                const char *target_nic, struct pair_result *out);
/* Target: serve a client whose first message this is, until its last. */
void pair_serve(struct channel *channel, const cJSON *greeting, const char *provider,
                const char *nics);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_LIB_CHANNEL_H
#define TOOLS_LIB_CHANNEL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

/* The connection beside the transfer, on which the two sides of a run agree: JSON objects, each
 * behind its length in four bytes, little endian. One thread uses it. */
struct channel {
	int fd;
	char peer[128]; /* who is at the other end, for people */
};

/* A connected socket. Takes it over. */
void channel_init(struct channel *ch, int fd, const char *peer);
void channel_close(struct channel *ch);

/* Listen on every address of this machine and take one connection. Dies of errors. said: a line
 * on stderr tells that it waits. wait_s: 0 = without end. */
void channel_serve(struct channel *ch, uint16_t port, uint32_t wait_s, bool said);
/* Connect, trying again until the time is up: the server may start later. Dies of errors. */
void channel_dial(struct channel *ch, const char *host, uint16_t port, uint32_t wait_s);

/* Takes the object over. Dies when the other side is gone. */
void channel_send(struct channel *ch, cJSON *object);
/* The next object, of the kind `kind` ({"do": kind}); the caller deletes it. Waits up to wait_s.
 * Dies when the other side is gone, has failed (with its words) or says something else. */
cJSON *channel_recv(struct channel *ch, const char *kind, uint32_t wait_s);
/* As channel_recv(), of any kind; NULL when the other side has closed. */
cJSON *channel_recv_any(struct channel *ch, uint32_t wait_s);
/* {"do": kind} */
cJSON *channel_message(const char *kind);
/* Last words; errors are ignored. */
void channel_tell_error(struct channel *ch, const char *text);

/* Members of a received object; die when one is missing, of another type or out of range. */
uint64_t member_u64(const cJSON *object, const char *name, uint64_t min, uint64_t max);
double member_number(const cJSON *object, const char *name);
bool member_bool(const cJSON *object, const char *name);
const char *member_text(const cJSON *object, const char *name);

#endif

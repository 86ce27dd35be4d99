/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_GID_H
#define PROV_VERBS_GID_H

/* Which entry of a port's GID table to speak from. Pure; no device is asked. */

#include <infiniband/verbs.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VERBS_GID_TEXT_BYTES 48

/* The entry of `port` to use: the one of index `wanted`, or with wanted < 0 the most routable one:
 * RoCE v2 before v1; then IPv4, IPv6, link-local; then the lowest index. InfiniBand: index 0.
 * NULL: there is none, or nothing at that index. */
const struct ibv_gid_entry *verbs_gid_choose(const struct ibv_gid_entry *entries, size_t count,
                                             uint32_t port, bool ethernet, int wanted);
/* "10.0.0.1" for an IPv4-mapped GID, else IPv6 notation. */
void verbs_gid_text(const uint8_t *raw, char out[VERBS_GID_TEXT_BYTES]);
bool verbs_gid_is_ipv4(const uint8_t *raw);
bool verbs_gid_is_zero(const uint8_t *raw);
/* "RoCE v2, IPv4": what kind of entry it is, for people. */
const char *verbs_gid_kind(const struct ibv_gid_entry *entry, bool ethernet);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROV_VERBS_RX_H
#define PROV_VERBS_RX_H

/* Receiving writes: one shared receive queue and one completion queue for all paths of a device.
 * Completions go from the queue into a ring that holds as many as there are requests, so it never
 * runs over, and from there into events; a request is posted again before its event is handed out,
 * so the queue runs short only when this process does not poll, and then senders wait (RNR). */

#include "prov/verbs/dev.h"

#define VERBS_SLOT_BYTES 32u /* room for a marker */

/* What a SEND on a path carries; immediates come with their writes. */
#define VERBS_MARK_BYTES 24u
enum verbs_mark_type {
	VERBS_MARK_READY = 1, /* the passive side can take writes */
	VERBS_MARK_PART = 2,
};

wimm_status verbs_rx_open(struct verbs_dev *dev, struct verbs_fail *fail);
void verbs_rx_close(struct verbs_dev *dev);
/* Into the ring; true: there may be more. */
bool verbs_rx_fill(struct verbs_dev *dev);
/* All there is, into the ring: nothing that has come stays behind in the device. */
void verbs_rx_fill_all(struct verbs_dev *dev);
/* From the ring into events; at most until the caller's array holds `limit`. */
void verbs_rx_tell(struct verbs_dev *dev, struct verbs_emit *emit, uint32_t limit);
/* What came on this queue pair and is not told counts for nobody any more. */
void verbs_rx_forget(struct verbs_dev *dev, uint32_t qpn);
/* Post the told ones again. */
void verbs_rx_repost(struct verbs_dev *dev);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAT_SEMA_H
#define PLAT_SEMA_H

#include <semaphore.h>

/* One thread waits for another, once; needs no descriptor. May lie on the waiter's stack: the
 * poster touches it no more once the waiter has gone on. */
struct sema {
	sem_t impl;
};

void sema_init(struct sema *s);
void sema_fini(struct sema *s);
void sema_post(struct sema *s);
void sema_wait(struct sema *s); /* not disturbed by signals */

#endif

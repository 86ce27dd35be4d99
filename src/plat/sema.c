/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/sema.h"

#include <errno.h>

#include "base/assert.h"

void sema_init(struct sema *s)
{
	ASSERT(sem_init(&s->impl, 0, 0) == 0);
}

void sema_fini(struct sema *s)
{
	ASSERT(sem_destroy(&s->impl) == 0);
}

void sema_post(struct sema *s)
{
	ASSERT(sem_post(&s->impl) == 0);
}

void sema_wait(struct sema *s)
{
	while (sem_wait(&s->impl) != 0)
		ASSERT(errno == EINTR);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "plat/wake.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/log.h"
#include "plat/clock.h"

wimm_status wake_init(struct wake *w)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0) {
		LOG_ERROR("eventfd: %s; raise ulimit -n", strerror(errno));
		return WIMM_E_SYSTEM;
	}
	w->fd = fd;
	atomic_init(&w->sleeping, 0);
	return WIMM_OK;
}

void wake_fini(struct wake *w)
{
	close(w->fd);
	w->fd = -1;
}

void wake_signal_always(struct wake *w)
{
	const uint64_t one = 1;
	ssize_t len;

	do {
		len = write(w->fd, &one, sizeof(one));
	} while (len < 0 && errno == EINTR);
	/* EAGAIN: the count is at its maximum, so the descriptor is readable already. */
	ASSERT(len == sizeof(one) || errno == EAGAIN);
}

void wake_signal(struct wake *w)
{
	/* [A] with [B] in wake_announce: both are read-modify-writes, so one comes first in the
	 * order of this word. If [B] did, we read its 1 and signal. If [A] did, [B] reads from it
	 * (or from a later one) and acquires what we published. A load here would allow both
	 * sides to miss each other. Claiming the 1 lets only one producer pay the system call. */
	if (atomic_exchange_explicit(&w->sleeping, 0, memory_order_acq_rel) != 0)
		wake_signal_always(w);
}

void wake_announce(struct wake *w)
{
	/* [B] with [A] in wake_signal. */
	(void)atomic_exchange_explicit(&w->sleeping, 1, memory_order_acq_rel);
}

void wake_cancel(struct wake *w)
{
	/* Acquires like [B]: a producer that came in between is seen by the next look. */
	(void)atomic_exchange_explicit(&w->sleeping, 0, memory_order_acq_rel);
}

void wake_drain(struct wake *w)
{
	uint64_t count;
	ssize_t len;

	do {
		len = read(w->fd, &count, sizeof(count));
	} while (len < 0 && errno == EINTR);
	ASSERT(len == sizeof(count) || errno == EAGAIN);
}

bool wake_wait(struct wake *w, uint64_t deadline_ns)
{
	struct pollfd pfd = { .fd = w->fd, .events = POLLIN };
	bool signalled = false;

	for (;;) {
		uint64_t now_ns = clock_now_ns();
		uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
		struct timespec left = { .tv_sec = (time_t)(left_ns / CLOCK_NS_PER_S),
			                 .tv_nsec = (long)(left_ns % CLOCK_NS_PER_S) };
		int ready = ppoll(&pfd, 1, deadline_ns == CLOCK_NEVER_NS ? NULL : &left, NULL);

		signalled = ready > 0;
		if (signalled || (ready == 0 && left_ns == 0))
			break;
		ASSERT(ready == 0 || errno == EINTR);
	}
	wake_cancel(w);
	wake_drain(w);
	return signalled;
}

int wake_fd(const struct wake *w)
{
	return w->fd;
}

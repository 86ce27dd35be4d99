/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"

enum { LOG_UNREAD = LOG_LEVEL_DEBUG + 1, LOG_LINE_BYTES = 1024 };

/* Relaxed everywhere: a level that another thread sees a little later is harmless. */
_Atomic int log_threshold = LOG_UNREAD;

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static log_sink_fn sink_fn; /* guarded by sink_lock, like the next */
static void *sink_arg;

const char *log_level_name(log_level level)
{
	static const char *const names[] = { "off", "error", "warn", "info", "debug" };

	return (unsigned)level < sizeof(names) / sizeof(names[0]) ? names[level] : "unknown";
}

void log_set_level(log_level level)
{
	atomic_store_explicit(&log_threshold, (int)level, memory_order_relaxed);
}

void log_set_sink(log_sink_fn sink, void *arg)
{
	pthread_mutex_lock(&sink_lock);
	sink_fn = sink;
	sink_arg = arg;
	pthread_mutex_unlock(&sink_lock);
}

/* One write call a line, so that lines of several threads and processes do not mix. */
static void to_stderr(log_level level, const char *text)
{
	char line[LOG_LINE_BYTES + 32];
	int len = snprintf(line, sizeof(line), "wimm: %s: %s\n", log_level_name(level), text);
	ssize_t done;

	if (len <= 0)
		return;
	done = write(STDERR_FILENO, line, (size_t)len);
	(void)done; /* there is nobody left to tell */
}

void log_write(log_level level, const char *fmt, ...)
{
	char text[LOG_LINE_BYTES];
	log_sink_fn sink;
	void *arg;
	va_list ap;
	int len;

	if (atomic_load_explicit(&log_threshold, memory_order_relaxed) == LOG_UNREAD)
		log_set_level((log_level)config_get_i64(CFG_LOG_LEVEL));
	/* Again, whoever has read it: another thread may have done so since the caller looked. */
	if (!log_enabled(level))
		return;
	va_start(ap, fmt);
	len = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (len < 0)
		return;
	if ((size_t)len >= sizeof(text)) /* say that the end is missing */
		memcpy(text + sizeof(text) - 4, "...", 4);
	pthread_mutex_lock(&sink_lock);
	sink = sink_fn;
	arg = sink_arg;
	pthread_mutex_unlock(&sink_lock);
	if (sink)
		sink(arg, level, text);
	else
		to_stderr(level, text);
}
